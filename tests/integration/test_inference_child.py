"""The classifier child: started on first use, restarted when it dies, gone with its parent, bounded when busy."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.inference.client import Classifier, Prediction
from app.inference.errors import ImageRefused, ModelRefused, Unavailable
from app.inference.local import classify_files
from tests.support.inference import CLASSES, network, until_gone
from tests.support.pictures import encoded, photo
from trainer.common.model_file import save_model

DATA = encoded(photo())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.pt"
    save_model(path, network(), classes=CLASSES, seed=47)
    return path


def classifier(**options: int) -> Classifier:
    return Classifier(max_pixels=20_000_000, max_bytes=5 * 2**20, **options)


async def attempt(one: Classifier, model: Path, data: bytes = DATA) -> Prediction | Exception:
    try:
        return await one.classify(data, model, ["cifar"])
    except Exception as error:
        return error


def test_child_lives_from_first_use_to_close(model: Path) -> None:
    async def scenario() -> None:
        one = classifier()
        assert [one.pid] == [None]
        answers = await asyncio.gather(*(one.classify(DATA, model, ["cifar"]) for _ in range(20)))
        pid = one.pid
        assert pid is not None
        assert all(answer.probabilities == pytest.approx(answers[0].probabilities, abs=1e-9) for answer in answers)
        await one.close()
        assert [one.pid] == [None]
        assert await until_gone(pid)

    asyncio.run(scenario())


def test_killed_child_is_replaced(model: Path) -> None:
    async def scenario() -> None:
        one = classifier()
        before = await one.classify(DATA, model, ["cifar"])
        first = one.pid
        assert first is not None
        waiting = [asyncio.create_task(attempt(one, model)) for _ in range(30)]
        await asyncio.sleep(0.01)
        os.kill(first, signal.SIGKILL)
        answers = await asyncio.gather(*waiting)
        assert all(isinstance(answer, Prediction) for answer in answers), answers
        assert one.pid not in {None, first}
        after = await one.classify(DATA, model, ["cifar"])
        assert after.probabilities == pytest.approx(before.probabilities, abs=1e-9)
        await one.close()

    asyncio.run(scenario())


def test_child_that_cannot_live_is_told(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(sys, "executable", "/bin/false")
        one = classifier()
        answer = await attempt(one, model)
        assert isinstance(answer, Unavailable), answer
        assert (answer.status, answer.retry_after) == (503, 1)
        monkeypatch.undo()
        assert isinstance(await attempt(one, model), Prediction)
        await one.close()

    asyncio.run(scenario())


def test_stopped_child_is_no_endless_wait(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        one = classifier()
        await one.classify(DATA, model, ["cifar"])
        monkeypatch.setattr("app.inference.client.ANSWER_SECONDS", 0.5)
        pid = one.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        answer = await attempt(one, model)
        assert isinstance(answer, Unavailable)
        assert await until_gone(pid)
        monkeypatch.undo()
        assert isinstance(await attempt(one, model), Prediction)
        await one.close()

    asyncio.run(scenario())


def test_full_queue_refuses_at_once(model: Path) -> None:
    async def scenario() -> None:
        one = classifier(max_waiting=4)
        answers = await asyncio.gather(*(attempt(one, model) for _ in range(10)))
        refused = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert len(refused) == 6
        assert {(item.status, item.code, item.retry_after) for item in refused} == {(503, "busy", 1)}
        assert sum(isinstance(answer, Prediction) for answer in answers) == 4
        assert isinstance(await attempt(one, model), Prediction)
        await one.close()

    asyncio.run(scenario())


def test_large_pictures_hold_nobody_up(model: Path) -> None:
    large = encoded(photo(4000, 4000), "JPEG", quality=20)

    async def scenario() -> None:
        one = classifier()
        await one.classify(DATA, model, ["cifar"])
        order: list[str] = []

        async def timed(name: str, data: bytes) -> Prediction | Exception:
            answer = await attempt(one, model, data)
            order.append(name)
            return answer

        answers = await asyncio.gather(*(timed("large", large) for _ in range(12)), timed("small", DATA))
        assert order.index("small") < 8
        refused = [answer for answer in answers if isinstance(answer, Unavailable)]
        assert 1 <= len(refused) <= 4
        assert all(item.retry_after == 2 for item in refused)
        assert sum(isinstance(answer, Prediction) for answer in answers) == 13 - len(refused)
        await one.close()

    asyncio.run(scenario())


def test_child_ends_with_its_parent(model: Path, tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal, sys; from pathlib import Path; from app.inference.client import Classifier\n"
        "async def main():\n"
        "    one = Classifier(max_pixels=10**6, max_bytes=10**6)\n"
        "    await one.classify(Path(sys.argv[2]).read_bytes(), Path(sys.argv[1]), ['cifar'])\n"
        "    print(one.pid, 'torch' in sys.modules, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    (tmp_path / "a.png").write_bytes(DATA)
    command = [sys.executable, "-c", script, str(model), str(tmp_path / "a.png")]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    assert output[1] == "False"
    assert asyncio.run(until_gone(int(output[0])))


def test_local_files_are_told_by_name(model: Path, tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    good.write_bytes(DATA)
    bad.write_bytes(DATA[:-200])

    def classify(*images: Path, model: Path = model) -> list[Prediction]:
        return classify_files(model, images, max_pixels=10**6, max_bytes=10**6)

    first, second = classify(good, good)
    assert first.probabilities == second.probabilities
    assert first.document(None)["run_id"] is None
    with pytest.raises(ImageRefused, match=r"bad\.png: the picture is truncated"):
        classify(good, bad)
    with pytest.raises(ImageRefused, match=r"none\.png: cannot be read") as missing:
        classify(tmp_path / "none.png")
    assert missing.value.status == 404
    with pytest.raises(ModelRefused, match="the model is unusable"):
        classify(good, model=good)
