"""What an attempt writes of its checkpoints: one row for each, harmless when repeated."""

from ludus.reading import read_record
from ludus.schemas import OnnxModel, OnnxTensor
from server.checkpoints.repository import CheckpointRepository
from server.kit.artifacts.store import FileRef
from server.kit.db.database import Database
from server.lifecycle.attempts import AttemptLedger
from tests.factories import make_checkpoint, make_claim, make_ledger, make_run, read_run
from tests.server.lifecycle.test_attempts import events


def test_a_checkpoint_gets_one_row_however_often_it_is_handed_in(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    checkpoint = make_checkpoint(500, files=[FileRef("CartPole.onnx", 10, "00"), FileRef("state.bin", 5, "11")])

    first = ledger.checkpoints.add(checkpoint)
    again = ledger.checkpoints.add(checkpoint)

    assert first == again
    with database.read() as session:
        row = CheckpointRepository(session).get(read_run(database, "run").id, first)
    assert (row.size, row.files[0]["name"]) == (15, "CartPole.onnx")
    assert [event.type for event in events(database)].count("checkpoint_saved") == 1


def test_a_checkpoint_keeps_the_descriptions_of_its_models_beside_files_that_the_previous_release_can_read(
    database: Database,
) -> None:
    ledger = make_ledger(database, name="run")
    tensor = OnnxTensor(name="obs_0", dtype="float32", shape=("batch", 4))
    model = OnnxModel(
        behavior="CartPole",
        opset=9,
        inputs=(tensor,),
        outputs=(),
        continuous_actions=0,
        discrete_branches=(2,),
        action_masks=True,
        memory_size=0,
    )
    files = [FileRef("CartPole.onnx", 10, "00"), FileRef("state.bin", 5, "11")]

    added = ledger.checkpoints.add(make_checkpoint(500, files=files, models={"CartPole.onnx": model}))

    with database.read() as session:
        row = CheckpointRepository(session).get(read_run(database, "run").id, added)
    assert row.models is not None
    assert read_record(OnnxModel, row.models["CartPole.onnx"]) == model
    assert [set(file) for file in row.files] == [{"name", "size", "sha256"}] * 2


def test_retention_gives_up_all_but_the_newest_and_the_final_ones(database: Database) -> None:
    ledger = make_ledger(database, name="run")
    ids = [ledger.checkpoints.add(make_checkpoint(step)) for step in (100, 200, 300, 400)]
    ledger.checkpoints.add(make_checkpoint(450, reason="final"))

    assert ledger.checkpoints.retire(0) == []
    assert ledger.checkpoints.retire(3) == ids[:1]
    assert ledger.checkpoints.retire(3) == []


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(database: Database) -> None:
    first = make_ledger(database, name="run")
    older = first.checkpoints.add(make_checkpoint(100))
    first.checkpoints.add(make_checkpoint(200))
    first.release("trainer_lost", "It crashed.")
    claim = make_claim(database)
    assert claim.resume is not None

    writer = AttemptLedger(database, claim).checkpoints
    resumed = writer.next_best(without=[claim.resume.id])
    writer.resume_instead({claim.resume.id: "its digest differs"})

    assert resumed is not None
    assert resumed.id == older
    assert events(database)[-1].type == "checkpoint_damaged"


def test_saving_again_at_the_restored_step_is_no_progress(database: Database) -> None:
    make_run(database, name="run")
    first = AttemptLedger(database, make_claim(database))
    first.checkpoints.add(make_checkpoint(100))
    first.release("trainer_lost", "It crashed.")
    second = AttemptLedger(database, make_claim(database))

    second.checkpoints.add(make_checkpoint(100, path="runs/x/2/checkpoints/100"))

    assert read_run(database, "run").restarts_without_progress == 1
