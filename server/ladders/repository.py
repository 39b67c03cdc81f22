"""Reads and writes ladders and their players."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Final, NamedTuple, Self

from sqlalchemy import insert, or_, select, update
from sqlalchemy.orm import load_only

from ludus.config.trainer import ReinforcementConfig
from server.checkpoints.models import Checkpoint
from server.kit.db.clock import now
from server.kit.db.ids import new_id
from server.kit.db.keyset import Columns, by_name, parts, select_page
from server.kit.db.projects import DEFAULT, project_of
from server.kit.db.repository import Repository, upsert
from server.kit.errors import NameAmbiguous
from server.kit.listing import ListQuery, Page
from server.kit.states import TERMINAL
from server.ladders.models import Ladder, LadderPlayer, RunLadder
from server.ladders.rating_systems import INITIAL_MU, INITIAL_SIGMA
from server.ladders.refs import LadderExists, LadderNotFound, PlayedParticipant, PlayerKind, PlayerNotFound
from server.runs.events.repository import UNTRACKED
from server.runs.models import BEING_DELETED, Run

INITIAL_ELO: Final = 1200.0
"""ML-Agents' `initial_elo`."""
_SHOWN = or_(Ladder.run_id.is_(None), Ladder.run_id.not_in(BEING_DELETED))


class Policy(NamedTuple):
    """A policy that a run plays, or plays against."""

    behavior: str
    snapshot: int | None
    """Its number; None: the policy that learns, or that a checkpoint holds."""
    checkpoint: str | None
    """The checkpoint of another run that it is from; None: it is one of the run's own."""
    scripted: str | None = None
    """Name of what plays instead of a policy that was learned: the player that has been registered by it, if any."""

    @classmethod
    def at(cls, participant: PlayedParticipant) -> Self:
        """Return the policy of a participant."""
        return cls(participant.behavior, participant.snapshot, participant.checkpoint, participant.scripted)

    @property
    def kind(self) -> PlayerKind:
        """The kind of the player in ladders."""
        if self.scripted is not None:
            return PlayerKind.SCRIPTED
        if self.snapshot is not None:
            return PlayerKind.SNAPSHOT
        return PlayerKind.POLICY if self.checkpoint is None else PlayerKind.CHECKPOINT


class LadderRepository(Repository):
    """Ladders and players."""

    COLUMNS: ClassVar[Columns] = {
        "name": Ladder.name,
        "run_id": Ladder.run_id,
        "players": Ladder.player_seq,
        "matches": Ladder.match_seq,
        "created_at": Ladder.created_at,
    }

    def find(self, ladder: str) -> Ladder | None:
        """Return the ladder with this id or name, else that of the run with this id or of the newest of this name.

        Raises NameAmbiguous: the session sees all projects, and several have a ladder of this name.
        """
        for same in (Ladder.id == ladder, Ladder.key == ladder):
            rows = self._session.scalars(select(Ladder).where(same, _SHOWN).order_by(Ladder.project)).all()
            if len(rows) > 1:
                raise NameAmbiguous("ladder", ladder, {row.project: row.id for row in rows})
            if rows:
                return rows[0]
        of_run = select(Ladder).join(RunLadder, RunLadder.ladder_id == Ladder.id).join(Run, Run.id == RunLadder.run_id)
        newest = of_run.where((Run.id == ladder) | (Run.name == ladder), Run.id.not_in(BEING_DELETED))
        newest = newest.order_by(Run.created_at.desc(), Run.id.desc())
        return self._session.scalars(newest.limit(1)).one_or_none()

    def get(self, ladder: str) -> Ladder:
        """Return a ladder, as `find`. Raises LadderNotFound."""
        row = self.find(ladder)
        if row is None:
            raise LadderNotFound(ladder)
        return row

    def list(self, query: ListQuery) -> Page[Ladder]:
        """Return a page of ladders."""
        return select_page(self._session, select(Ladder).where(_SHOWN), query, self.COLUMNS, Ladder.id)

    def named(self, names: Collection[str], *, lock: bool) -> dict[str, Ladder]:
        """Return those ladders that were made under one of these names; with `lock` they stay until the commit."""
        query = select(Ladder).where(Ladder.key.in_(names), Ladder.run_id.is_(None)).order_by(Ladder.id)
        rows = self._session.scalars(query.with_for_update(read=True) if lock else query)
        return {row.key: row for row in rows}

    def lock(self, ladder: str) -> Ladder:
        """Return a ladder (id or name), locked until the commit. Raises LadderNotFound."""
        row = self._locked(select(Ladder).where(Ladder.id == self.get(ladder).id))
        if row is None:
            raise LadderNotFound(ladder)
        return row

    def lock_of_run(self, run_id: str) -> Ladder:
        """Return, locked, the ladder that a run's matches go to; a run without one gets its own."""
        of_run = select(Ladder).join(RunLadder, RunLadder.ladder_id == Ladder.id).where(RunLadder.run_id == run_id)
        row = self._locked(of_run, of=Ladder)
        return self.own(run_id) if row is None else row

    def own(self, run_id: str) -> Ladder:
        """Make a run its own ladder, called like its id."""
        ladder = self.insert(run_id, description="", initial_elo=None, run_id=run_id)
        self.join(run_id, ladder.id)
        return ladder

    def join(self, run_id: str, ladder_id: str) -> None:
        """Connect a run to a ladder: its matches are stored there."""
        self._session.execute(insert(RunLadder).values(run_id=run_id, ladder_id=ladder_id))

    def insert(self, name: str, *, description: str, initial_elo: float | None, run_id: str | None = None) -> Ladder:
        """Insert a ladder without players. Raises LadderExists, also if another transaction takes the name now."""
        ladder_id = new_id("ldr")
        values = upsert(self._session, Ladder).values(
            id=ladder_id,
            project=project_of(self._session)
            or (self._session.scalar(select(Run.project).where(Run.id == run_id)) or DEFAULT),
            key=name,
            former_name=run_id or ladder_id,
            description=description,
            run_id=run_id,
            initial_elo=INITIAL_ELO if initial_elo is None else initial_elo,
            player_seq=0,
            match_seq=0,
            rated_through=0,
            generation=0,
            created_at=now(),
        )
        inserted = values.on_conflict_do_nothing(index_elements=[Ladder.project, Ladder.key]).returning(Ladder.id)
        if self._session.scalar(inserted) is None:
            raise LadderExists(name)
        return self._session.get_one(Ladder, ladder_id)

    def delete(self, ladder: Ladder) -> None:
        """Remove a ladder with all that belongs to it."""
        self._session.delete(ladder)
        self._session.flush()

    def live_run(self, ladder_id: str) -> str | None:
        """Return the id of a run that has not ended and whose matches go to a ladder; None if there is none."""
        query = select(Run.id).join(RunLadder, RunLadder.run_id == Run.id)
        return self._session.scalar(query.where(RunLadder.ladder_id == ladder_id, Run.state.not_in(TERMINAL)).limit(1))


class PlayerRepository(Repository):
    """Players of ladders, and what is known of them."""

    COLUMNS = by_name(
        *(LadderPlayer.id, LadderPlayer.name, LadderPlayer.kind, LadderPlayer.run_id, LadderPlayer.behavior),
        *(LadderPlayer.snapshot, LadderPlayer.step, LadderPlayer.fixed, LadderPlayer.games),
        *(LadderPlayer.elo, LadderPlayer.mu, LadderPlayer.ordinal),
    )

    def get(self, ladder_id: str, player: int | str) -> LadderPlayer:
        """Return the player with this number or key. Raises PlayerNotFound."""
        same = LadderPlayer.id == player if isinstance(player, int) else LadderPlayer.key == player
        query = select(LadderPlayer).where(LadderPlayer.ladder_id == ladder_id, same)
        row = self._session.scalars(query).one_or_none()
        if row is None:
            raise PlayerNotFound(ladder_id, player)
        return row

    def get_all(self, ladder_id: str, numbers: Sequence[int]) -> Sequence[LadderPlayer]:
        """Return players, in the order of their numbers. Raises PlayerNotFound."""
        players: dict[int, LadderPlayer] = {}
        for part in parts(sorted(set(numbers))):
            query = select(LadderPlayer).where(LadderPlayer.ladder_id == ladder_id, LadderPlayer.id.in_(part))
            players |= {player.id: player for player in self._session.scalars(query.order_by(LadderPlayer.id))}
        for number in numbers:
            if number not in players:
                raise PlayerNotFound(ladder_id, number)
        return list(players.values())

    def exists(self, ladder_id: str, name: str) -> bool:
        """Say whether a ladder has a player that was registered by this name."""
        query = select(LadderPlayer.id).where(LadderPlayer.ladder_id == ladder_id, LadderPlayer.key == name)
        return self._session.scalar(query) is not None

    def list(self, ladder_id: str, query: ListQuery) -> Page[LadderPlayer]:
        """Return a page of a ladder's players."""
        statement = select(LadderPlayer).where(LadderPlayer.ladder_id == ladder_id)
        return select_page(self._session, statement, query, self.COLUMNS, LadderPlayer.id)

    def learning(self, ladder_id: str, limit: int) -> Sequence[LadderPlayer]:
        """Return the newest learning policies of a ladder."""
        query = select(LadderPlayer).where(
            LadderPlayer.ladder_id == ladder_id, LadderPlayer.kind == PlayerKind.POLICY, LadderPlayer.games > 0
        )
        return self._session.scalars(query.order_by(LadderPlayer.id.desc()).limit(limit)).all()

    def played(self, ladder_id: str, limit: int) -> Sequence[LadderPlayer]:
        """Return the newest players of a ladder that have played, in the order of their numbers."""
        query = select(LadderPlayer).where(LadderPlayer.ladder_id == ladder_id, LadderPlayer.games > 0)
        return self._session.scalars(query.order_by(LadderPlayer.id.desc()).limit(limit)).all()[::-1]

    def insert(self, ladder: Ladder, players: Sequence[Mapping[str, object]]) -> Sequence[int]:
        """Add players to a locked ladder; return their numbers."""
        first = ladder.player_seq + 1
        ladder.player_seq += len(players)
        optional = ("run_id", "behavior", "snapshot", "checkpoint_id", "step")
        rows = []
        for number, player in enumerate(players, first):
            row = {
                "initial_elo": ladder.initial_elo,
                "initial_mu": INITIAL_MU,
                "initial_sigma": INITIAL_SIGMA,
                "fixed": False,
                **dict.fromkeys(optional),
                **player,
            }
            present = {name: row[f"initial_{name}"] for name in ("elo", "mu", "sigma")}
            rows.append({**row, **present, "ladder_id": ladder.id, "id": number, "games": 0, "created_at": now()})
        for row in rows:
            self._session.execute(insert(LadderPlayer).values(row))  # one by one: the time is the database's
        return range(first, ladder.player_seq + 1)

    def of_run(self, ladder: Ladder, run_id: str, participants: Iterable[PlayedParticipant]) -> dict[Policy, int]:
        """Return the numbers of those who played for a run in a locked ladder; those that it lacks are added.

        Policies of other runs are players of theirs; one that was registered by its checkpoint is that player.
        """
        steps: dict[Policy, int] = {}
        for participant in participants:
            policy = Policy.at(participant)
            steps[policy] = max(participant.step, steps.get(policy, 0))
        runs = self._runs({policy.checkpoint for policy in steps if policy.checkpoint is not None})
        registered = self._registered(ladder.id, [policy for policy in steps if policy.kind is PlayerKind.CHECKPOINT])
        origins = {policy: _origin(policy, run_id, runs) for policy in steps}
        names = {policy: policy_key(origins[policy], policy) for policy in steps if policy not in registered}
        newest: dict[str, int] = {}
        for policy, name in names.items():
            newest[name] = max(steps[policy], newest.get(name, 0))
        numbers = self._known(ladder.id, newest)
        missing: dict[str, Policy] = {}
        # The run's own before others, by behavior, the learning policy before its snapshots.
        order = {policy: -1 if policy.snapshot is None else policy.snapshot for policy in names}
        for policy in sorted(names, key=lambda policy: (policy.checkpoint or "", policy.behavior, order[policy])):
            if names[policy] not in numbers:
                missing.setdefault(names[policy], policy)  # one snapshot may be in several checkpoints
        if missing:
            elo = self._initial_elo(ladder, run_id)
            rows = [
                {
                    "kind": policy.kind,
                    "key": name,
                    "run_id": origins[policy],
                    "behavior": policy.behavior,
                    "snapshot": policy.snapshot,
                    "checkpoint_id": policy.checkpoint,
                    "step": steps[policy],
                    "initial_elo": elo(policy.behavior),
                }
                for name, policy in missing.items()
            ]
            numbers |= dict(zip(missing, self.insert(ladder, rows), strict=True))
        return registered | {policy: numbers[name] for policy, name in names.items()}

    def _runs(self, checkpoints: Collection[str]) -> dict[str, str]:
        """Return the runs that checkpoints are from."""
        if not checkpoints:
            return {}
        query = select(Checkpoint.id, Checkpoint.run_id).where(Checkpoint.id.in_(sorted(checkpoints)))
        return {row.id: row.run_id for row in self._session.execute(query)}

    def _registered(self, ladder_id: str, policies: Sequence[Policy]) -> dict[Policy, int]:
        """Return the numbers of policies of checkpoints that were registered, or that have played before."""
        numbers: dict[Policy, int] = {}
        for policy in policies:
            same = (LadderPlayer.kind == PlayerKind.CHECKPOINT, LadderPlayer.checkpoint_id == policy.checkpoint)
            whose = LadderPlayer.behavior.is_(None) | (LadderPlayer.behavior == policy.behavior)
            query = select(LadderPlayer.id).where(LadderPlayer.ladder_id == ladder_id, *same, whose)
            number = self._session.scalar(query.order_by(LadderPlayer.id).limit(1))
            if number is not None:
                numbers[policy] = number
        return numbers

    def _known(self, ladder_id: str, newest: Mapping[str, int]) -> dict[str, int]:
        """Return the numbers of those policies (by name) that a ladder has, and note how long they had learned."""
        numbers: dict[str, int] = {}
        for part in parts(sorted(newest)):
            query = select(LadderPlayer.id, LadderPlayer.key, LadderPlayer.step)
            of_part = query.where(LadderPlayer.ladder_id == ladder_id, LadderPlayer.key.in_(part))
            for number, name, step in self._session.execute(of_part).all():
                numbers[name] = number
                if step != newest[name]:
                    same = (LadderPlayer.ladder_id == ladder_id, LadderPlayer.id == number)
                    self._session.execute(
                        update(LadderPlayer).where(*same).values(step=newest[name]), execution_options=UNTRACKED
                    )
        return numbers

    def _initial_elo(self, ladder: Ladder, run_id: str) -> Callable[[str], float]:
        """Return the Elo with which a behavior of a run begins: its `initial_elo`, else the ladder's."""
        run = self._session.scalar(select(Run).where(Run.id == run_id).options(load_only(Run.config)))
        config = None if run is None else run.parsed_config

        def of(behavior: str) -> float:
            settings = None if config is None else config.behavior(behavior)
            if isinstance(settings, ReinforcementConfig) and settings.self_play is not None:
                return settings.self_play.initial_elo
            return ladder.initial_elo

        return of


def policy_key(run_id: str | None, policy: Policy) -> str:
    """Return the key of a policy of a run in ladders; None: the run is unknown."""
    if policy.scripted is not None:
        return policy.scripted
    name = f"{run_id or policy.checkpoint}/{policy.behavior}"
    match policy.kind:
        case PlayerKind.SNAPSHOT:
            return f"{name}#{policy.snapshot}"
        case PlayerKind.CHECKPOINT:
            return f"{name}@{policy.checkpoint}"
        case _:
            return name


def _origin(policy: Policy, run_id: str, runs: Mapping[str, str]) -> str | None:
    """Return the run that a policy is from, if one still is known."""
    if policy.scripted is not None:
        return None
    return run_id if policy.checkpoint is None else runs.get(policy.checkpoint)
