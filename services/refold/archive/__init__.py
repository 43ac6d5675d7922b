"""The archivist: copies runs that ended long ago into an archive, then erases them from every topic.

**Consumes** every topic that holds something of a run, without a group. **Produces** files in an archive (a folder or
an object store), a marker per erased run in `run-snapshot`, and tombstones.

**Guarantees** A run is erased only when it is over, its outcome was told, and its copy was read back and verified. From
before the first tombstone until nothing of the run lies in any topic its marker stands: whatever crash or cleaning
leaves of it meanwhile is neither a run nor the beginning of one. A file of the archive is complete or not there, and
never changes.

**When it dies** the next pass does what is left: it asks the topics, and keeps nothing itself. Two at once do the same
work twice.

Where to look: `collecting` says which runs are over and takes their records, `container` is the format of a file,
`store` keeps files and finds runs in them, `inspection` verifies a copy without Kafka, `erasure` says what is written
in which order, `service` does it all once per pass. `reader` lets a copy be read as if it still lay in the log.
"""
