"""Bugs of erasure: too early, in part, without a sound copy, or as if it had never been."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from refold.core.ids import RunId
from refold.core.messages import RunErased
from refold.core.run.erased import HORIZON_KEY, erased_run
from refold.engine.archive.collecting import ArchivableRun
from refold.engine.archive.container import ArchivedRun
from refold.engine.archive.erasure import RunKey
from refold.engine.archive.service import Archivist, Swept, _marker
from refold.engine.archive.store import ArchiveStore
from refold.engine.executor.claim_chain import Lineage
from refold.engine.planner.log.acceptance import Acceptance
from refold.engine.ports.log import Record
from tests.sim.bugs.planting import Bug, wrapped


def _believes_the_index(archive_store: ArchiveStore, place: str, group: Sequence[ArchivedRun]) -> dict[RunId, str]:
    wanted = {(run.run_id, run.digest) for run in group}
    lines = [line for file in archive_store._files_of(place) for line in archive_store.index(file)]
    return {line.run_id: line.file for line in lines if (line.run_id, line.digest) in wanted}


def _keeps_nothing(archive_store: ArchiveStore, runs: Sequence[ArchivedRun]) -> dict[RunId, str]:
    return {run.run_id: "nowhere.avro" for run in runs}


def _by_the_clock_alone(archivist: Archivist, partition: int, _: object, __: object, swept: Swept) -> None:
    moved = RunErased(RunId(""), at_ms=swept.now_ms - archivist._settings.horizon_ms)
    archivist._write([_marker(partition, HORIZON_KEY, moved)])


def _told_or_not(archivist: Archivist, runs: list[ArchivableRun], *_: Any) -> list[ArchivableRun]:
    return runs


def _itself(run: str, above: str) -> bool:
    return run == above


def _children_first(due: Iterable[ArchivableRun], _: object = ()) -> list[ArchivableRun]:
    return sorted(due, key=lambda run: run.run_id, reverse=True)


def _clears_first(original: Callable[..., Any]) -> Callable[..., Any]:
    def leave(archivist: Archivist, partition: int, batch: list[ArchivableRun], swept: Any) -> Any:
        archivist._clear({run.run_id: RunErased(run.run_id) for run in batch}, swept)
        return original(archivist, partition, batch, swept)

    return leave


def _valued_alone(original: Callable[..., list[RunKey]]) -> Callable[..., list[RunKey]]:
    def lying(*given: Any) -> list[RunKey]:
        return [each for each in original(*given) if each.valued]

    return lying


def _nothing(*_: object) -> None:
    return None


def _row_and_all(original: Callable[..., None]) -> Callable[..., None]:
    def erase(log: Acceptance, record: Record) -> None:
        original(log, record)
        if run := erased_run(record.key):
            log.finished.forget(run)

    return erase


def _claims_of_nobody(original: Callable[..., Lineage]) -> Callable[..., Lineage]:
    def of(*given: Any) -> Lineage:
        return replace(original(*given), erased=False)

    return of


RUTHLESS: dict[str, Bug] = {
    "copy-unverified": Bug(("erased",), (("ArchiveStore._verified", _believes_the_index),), ("die",)),
    "archived-in-name": Bug(("erased",), (("ArchiveStore.keep", _keeps_nothing),)),
    "erased-untold": Bug(("erased",), (("Archivist._settled", _told_or_not),), ("away",)),
    "family-erased-in-part": Bug(("erased-on-demand",), (("archive.service._is_of", _itself),)),
    "children-erased-first": Bug(("erased-large",), (("archive.service._parents_first", _children_first),)),
    "tombstones-before-marker": Bug(("erased",), (wrapped("Archivist._leave", _clears_first),)),
    "marker-gone-too-soon": Bug(("erased",), (wrapped("archive.service.lying_of", _valued_alone),)),
    "marker-ignored": Bug(("erased",), (("Acceptance.erase", _nothing),)),
    "claims-erased-too": Bug(("erased-once", "erased-probed"), (wrapped("Claims.of", _claims_of_nobody),), ("mirror",)),
    "horizon-over-what-lies": Bug(("erased-forgotten",), (("Archivist._move_horizon", _by_the_clock_alone),)),
    "row-erased-too": Bug(("erased", "erased-on-demand"), (wrapped("Acceptance.erase", _row_and_all),)),
}
