"""What a lane does as time passes, though nothing comes for it: it asks the log for the time, and writes its snapshot.

Both go by the local clock, which decides nothing else.
"""

from __future__ import annotations

from refold.planner.parts import LaneParts

BEAT_MS = 1_000
"""How long a lane waits for the time that it asked the log for."""

QUIET_MS = 60_000
"""How long it goes by its own clock, which stands still while a machine sleeps, before it asks again."""


class Pacing:
    """When one lane has to be called. A round of its snapshot begins every `snapshot_ms`. **Units**: monotonic, ms."""

    def __init__(self, parts: LaneParts, snapshot_ms: int) -> None:
        self._clock, self._snapshot_ms, self._log, self._inbox = parts.clock, snapshot_ms, parts.log, parts.inbox
        self._outbox, self._holds, self._timers, self._start = parts.outbox, parts.holds, parts.timers, parts.start
        self._beat_due = self._round_due = self._anchor_due = 0
        self._moves = True

    def moved(self) -> None:
        """Something came: the snapshot may not say all of it."""
        self._moves = True

    def begin(self) -> None:
        """The lane is live, and asks the log for the time before it decides anything."""
        self._beat_due = self._clock.mono_ms

    def heard(self) -> None:
        """The log has told the time."""
        self._beat_due = self._clock.mono_ms + QUIET_MS

    def knows(self) -> bool:
        """Whether the log has told the time, and whose the partition is; if not, or not of late, it is asked."""
        mono, keeper = self._clock.mono_ms, self._log.keeper
        if mono >= self._beat_due and (not self._clock.fresh or self._next_ms() is not None):
            self._beat_due = mono + BEAT_MS
            self._outbox.beat()
        if not keeper.opened and mono >= self._round_due:
            self._round_due = mono + self._snapshot_ms
            keeper.send_refused()
        return self._clock.fresh and keeper.opened

    def keep(self) -> None:
        """Tells others what is spent, and writes what has moved, every few seconds, some of it in every turn."""
        log, mono = self._log, self._clock.mono_ms
        log.windows.tell(log.position, mono_ms=mono, now=self._clock.now_ms)
        told = log.windows.low_water(log.position)
        if self._bare:
            self._anchor(mono)
        else:
            self._anchor_due = 0
        due = (log.keeper.heavy or mono >= self._round_due) and not self._bare
        # Of what a snapshot stands for a successor reads no entries: it has to be told what they took.
        if due and told >= log.keeper.ended_at and not (self._start.resuming or self._outbox.beginning):
            self._round_due, self._moves = mono + self._snapshot_ms, False
            inputs = self._start.inputs | self._inbox.low_water()
            log.round(min(told, self._outbox.low_water(log.position)), inputs)
        log.keeper.write(log.position)

    @property
    def _bare(self) -> bool:
        """Whether marks have nothing to stand on: every run of which this planner has read an entry was erased."""
        return not self._log.keeper.anchors and self._log.position > 0 and not self._start.resuming

    def _anchor(self, mono: int) -> None:
        # Without one a successor would read the whole log, and all that people ever said.
        if mono >= self._anchor_due:
            self._anchor_due, self._round_due = mono + BEAT_MS, 0
            self._outbox.anchor(self._log.position, self._clock.now_ms)

    def next_due_ms(self) -> int | None:
        """When the lane wants to `work` at the latest."""
        if not self._log.live:
            return None
        if not self._clock.fresh:
            return self._beat_due
        if not self._log.keeper.opened:
            return self._round_due
        idle = not self._log.blocked and not self._log.flying
        if self._log.keeper.writing or (idle and self._goes_on):
            return 0
        mono = self._clock.mono_ms
        due = [
            (self._round_due if self._round_due > mono else mono + BEAT_MS) if self._moves else None,
            self._inbox.next_due_ms() if idle else None,
            self._log.windows.next_due_ms(),
            self._anchor_due if self._bare else None,
        ]
        if (at := self._next_ms()) is not None:
            due.append(min(self._clock.mono_of(at), self._beat_due))
        return min((each for each in due if each is not None), default=None)

    @property
    def _goes_on(self) -> bool:
        """Whether something is left to be done though nothing comes."""
        # What was held back until all that was said before is answered goes on as soon as it is.
        start = self._start
        return start.resuming or self._outbox.halting.looking or (start.waits and start.heard)

    def _next_ms(self) -> int | None:
        """When time alone will make something due, by the log's clock."""
        times = (self._timers.next_ms(), self._outbox.unanswered.next_ms(), self._holds.next_ms())
        return min((at for at in times if at is not None), default=None)
