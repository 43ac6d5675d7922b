"""The archivist: copies runs that ended long ago into an archive, then erases them from every topic.

**Consumes** every topic with records of runs, without a group. **Produces** files in an archive (a folder or an object
store), a marker per erased run in `run-snapshot`, and tombstones.

**Guarantees** A run is erased only when it is over, its outcome was published, and its copy was read back and verified.
Its marker exists from before the first tombstone until no topic has records of it: remains are neither a run nor the
beginning of one. A file of the archive is complete or absent, and never changes.

**When it dies** the next pass does the rest. Two at once do the same work twice.
"""
