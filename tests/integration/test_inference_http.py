"""Classification over HTTP: right numbers, clear refusals, flat memory."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import torch
from fastapi import FastAPI
from PIL import Image

from app.inference.choose import model_path
from app.inference.local import classify_files
from app.settings import Settings
from tests.support.inference import CLASSES, add_run, network, served, service
from tests.support.pictures import HOSTILE, encoded, exif, frames, photo
from tests.support.waiting import until
from trainer.common.model_file import load_model
from trainer.contract.pixels import CHANNEL_DEVIATIONS, CHANNEL_MEANS, pixels
from trainer.kinds.cifar.train.model import from_header

LIMIT = 512 * 1024


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> FastAPI:
    return service(Settings(data_dir=tmp_path_factory.mktemp("data"), max_upload_bytes=LIMIT))


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with served(app) as session:
        yield session


@pytest.fixture(scope="module")
def run_id(app: FastAPI) -> int:
    return add_run(app)


def send(client: httpx.Client, data: bytes, path: str = "/predict", name: str = "a.png") -> httpx.Response:
    response: httpx.Response = client.post(f"/api/v1{path}", files={"file": (name, data)})
    return response


def answer(client: httpx.Client, data: bytes, path: str = "/predict", name: str = "a.png") -> dict[str, Any]:
    response = send(client, data, path, name)
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    return document


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    return float(max(abs(one["probabilities"][name] - other["probabilities"][name]) for name in CLASSES))


def test_answer_has_all_parts(client: httpx.Client, run_id: int, app: FastAPI) -> None:
    found = answer(client, encoded(photo()))
    assert found.keys() == {"class", "confidence", "probabilities", "run_id", "model_sha256", "seconds"}
    assert list(found["probabilities"]) == list(CLASSES)
    assert abs(sum(found["probabilities"].values()) - 1) < 1e-6
    assert found["confidence"] == found["probabilities"][found["class"]] == max(found["probabilities"].values())
    assert found["run_id"] == run_id
    path = model_path(app.state.settings.runs_dir, run_id, "cifar", {"mode": "no_sync"})
    assert found["model_sha256"] == load_model(path, from_header).sha256
    assert 0 < found["seconds"] < 60


def test_numbers_of_plain_network(client: httpx.Client, run_id: int) -> None:
    image = torch.from_numpy(pixels(photo())).permute(2, 0, 1).float().div(255)
    means, deviations = (torch.tensor(values).view(3, 1, 1) for values in (CHANNEL_MEANS, CHANNEL_DEVIATIONS))
    with torch.inference_mode():
        expected = network()(((image - means) / deviations)[None]).double().softmax(1)[0].tolist()
    found = answer(client, encoded(photo()), f"/runs/{run_id}/predict")["probabilities"]
    assert max(abs(found[name] - value) for name, value in zip(CLASSES, expected, strict=True)) < 1e-6


def test_command_gives_same_numbers(client: httpx.Client, run_id: int, app: FastAPI, tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(photo(), "JPEG"))
    path = model_path(app.state.settings.runs_dir, run_id, "cifar", {"mode": "no_sync"})
    (local,) = classify_files(path, [tmp_path / "a.jpg"], max_pixels=20_000_000, max_bytes=LIMIT)
    served = answer(client, (tmp_path / "a.jpg").read_bytes())
    document = local.document(run_id).model_dump(exclude_unset=True)
    assert {**document, "seconds": 0} == {**served, "seconds": 0}


def test_content_decides_not_the_name(client: httpx.Client, run_id: int) -> None:
    data = encoded(photo(), "JPEG")
    honest = answer(client, data, name="a.jpg")
    for name in ("a.png", "a.txt", "a.heic", "../../etc/passwd", "a\x00.png", "ü" * 300, ""):
        if name:
            assert difference(answer(client, data, name=name), honest) == 0


def test_orientation_gives_same_prediction(client: httpx.Client, run_id: int) -> None:
    upright = answer(client, encoded(photo(36, 24)))
    stored = photo(36, 24).rotate(90, expand=True)
    assert difference(answer(client, encoded(stored, exif=exif(6))), upright) == 0
    assert difference(answer(client, encoded(stored)), upright) > 1e-3


def test_animation_names_its_frame(client: httpx.Client, run_id: int) -> None:
    assert answer(client, frames("GIF"))["frame"] == 0


def test_both_answers_with_no_sync(client: httpx.Client, app: FastAPI, run_id: int) -> None:
    both = add_run(app, mode="both", modes=("every", "no_sync"), seed=5, verdict="fail")
    found = answer(client, encoded(photo()), f"/runs/{both}/predict")
    root = app.state.settings.runs_dir / str(both) / "artifacts"
    assert found["model_sha256"] == load_model(root / "no_sync" / "model.pt", from_header).sha256
    assert found["model_sha256"] != load_model(root / "every" / "model.pt", from_header).sha256
    assert answer(client, encoded(photo()))["run_id"] == run_id  # a failed audit never answers for the newest run


def test_unusable_runs_are_refused(client: httpx.Client, app: FastAPI, run_id: int) -> None:
    cases = {
        999_999: (404, "no run 999999"),
        add_run(app, seed=None, kind="resume"): (404, "of kind resume"),
        add_run(app, seed=None, state="running", verdict=None): (404, "is running"),
        add_run(app, seed=None, verdict="fail"): (404, "no longer has a model"),
    }
    for number, (status, words) in cases.items():
        response = send(client, encoded(photo()), f"/runs/{number}/predict")
        assert (response.status_code, words in response.json()["detail"]) == (status, True), response.text
        assert response.headers["content-type"] == "application/problem+json"
    assert send(client, b"", "/runs/x/predict").status_code == 422


def test_damaged_model_is_refused(client: httpx.Client, app: FastAPI) -> None:
    number = add_run(app, verdict="fail")
    path = model_path(app.state.settings.runs_dir, number, "cifar", {"mode": "no_sync"})
    path.write_bytes(path.read_bytes()[:-1000])
    response = send(client, encoded(photo()), f"/runs/{number}/predict")
    assert (response.status_code, response.json()["code"]) == (409, "model_refused")


def test_no_model_says_how_to_train(tmp_path: Path) -> None:
    with served(service(Settings(data_dir=tmp_path))) as client:
        response = send(client, encoded(photo()))
    assert response.status_code == 404
    assert "ddp-audit run cifar" in response.json()["detail"]


def test_hostile_uploads_never_fail(client: httpx.Client, app: FastAPI, run_id: int) -> None:
    """Every hostile upload gets its own 4xx, and neither process grows."""
    answer(client, encoded(photo()))
    child = psutil.Process(app.state.classifier.pid)
    small = child.memory_info().rss
    for _ in range(2):
        answer(client, encoded(Image.new("RGBA", (4000, 4000), (9, 9, 9, 99)), exif=exif(6)))
    # Decoding it took four times as much, which is freed after its answer.
    until(lambda: child.memory_info().rss - small < 64 * 2**20, "the memory of the last picture is freed")
    processes = [psutil.Process(), child]
    uploads = [(name, make(), statuses) for name, (make, statuses) in HOSTILE.items()]
    assert len(uploads) >= 40
    before = [process.memory_info().rss for process in processes]
    wrong = []
    for name, data, statuses in uploads:
        response = send(client, data)
        if response.status_code not in statuses or "traceback" in response.text.lower():
            wrong.append((name, response.status_code, response.text[:200]))
    assert wrong == []
    growth = [process.memory_info().rss - rss for process, rss in zip(processes, before, strict=True)]
    assert max(growth) < 64 * 2**20, growth
    answer(client, encoded(photo()))


def test_upload_over_the_limit(client: httpx.Client, run_id: int) -> None:
    fits = encoded(photo(), "JPEG")
    assert send(client, fits + bytes(LIMIT - len(fits))).status_code == 200
    over = send(client, fits + bytes(LIMIT - len(fits) + 1))
    assert (over.status_code, over.json()["code"]) == (413, "upload_too_large")
    assert send(client, bytes(3 * LIMIT)).status_code == 413


def part(content: bytes, disposition: str = 'form-data; name="file"; filename="a.png"') -> bytes:
    return b"--b\r\nContent-Disposition: " + disposition.encode() + b"\r\n\r\n" + content + b"\r\n"


@pytest.mark.parametrize(
    ("kind", "body", "status"),
    [
        ("multipart/form-data; boundary=b", b"", 422),
        ("multipart/form-data; boundary=b", b"--b--\r\n", 422),
        ("multipart/form-data; boundary=b", b"no form at all", 422),
        ("multipart/form-data; boundary=b", part(b"x"), 422),
        ("multipart/form-data; boundary=b", part(b"x", 'form-data; name="picture"; filename="a"') + b"--b--\r\n", 422),
        ("multipart/form-data; boundary=b", part(b"x", 'form-data; name="file"') + b"--b--\r\n", 422),
        ("multipart/form-data; boundary=b", part(b"x") + part(b"y") + b"--b--\r\n", 422),
        ("multipart/form-data; boundary=b", part(b"", "\xff;;;=") + b"--b--\r\n", 422),
        ("multipart/form-data; boundary=b", b"--b\r\n" + b"A" * 15_000, 422),
        ("multipart/form-data; boundary=b", part(b"x", 'form-data; name="other"') * 17 + b"--b--\r\n", 422),
        ("multipart/form-data; boundary=" + "b" * 5000, part(b"x"), 422),
        ("multipart/form-data", part(b"x"), 415),
        ("application/json", b"{}", 415),
        ("image/png", b"\x89PNG", 415),
        ("", b"", 415),
    ],
)
def test_malformed_forms_are_refused(client: httpx.Client, kind: str, body: bytes, status: int) -> None:
    response = client.post("/api/v1/predict", content=body, headers={"content-type": kind} if kind else {})
    assert response.status_code == status, response.text
    assert "file" in response.json()["detail"] or "multipart" in response.json()["detail"]


def test_honest_form_passes_by_hand(client: httpx.Client, run_id: int) -> None:
    body = part(b"1", 'form-data; name="token"') + part(encoded(photo())) + b"--b--\r\n"
    response = client.post(
        "/api/v1/predict", content=body, headers={"content-type": 'Multipart/Form-Data; boundary="b"'}
    )
    assert response.status_code == 200, response.text


def test_large_body_stops_early(client: httpx.Client) -> None:
    """A body of unknown length is refused while it arrives, not after it has been stored."""

    def endless() -> Iterator[bytes]:
        yield part(b"").removesuffix(b"\r\n")
        for _ in range(400):
            yield bytes(2**16)

    before = psutil.Process().memory_info().rss
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response = client.post("/api/v1/predict", content=endless(), headers=headers)
    assert (response.status_code, response.json()["code"]) == (413, "upload_too_large")
    assert psutil.Process().memory_info().rss - before < 8 * 2**20


def test_stated_length_is_refused_unread(client: httpx.Client) -> None:
    """A client that only states a huge length and then waits is refused at once."""
    address = (client.base_url.host, client.base_url.port or 0)
    head = (
        "POST /api/v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
        f"Content-Length: {2**40}\r\n\r\n--b\r\n"
    )
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(head.encode())
        assert connection.recv(2**16).startswith(b"HTTP/1.1 413")


def test_concurrent_requests_same_numbers(client: httpx.Client, app: FastAPI, run_id: int) -> None:
    uploads = [encoded(photo(seed=number).rotate(40 * number), "JPEG") for number in range(24)]
    alone = [answer(client, data) for data in uploads]

    with ThreadPoolExecutor(24) as threads:
        found = list(threads.map(partial(answer, client), uploads))
    assert max(difference(*pair) for pair in zip(alone, found, strict=True)) < 1e-6
    assert min(difference(alone[0], other) for other in alone[1:]) > 1e-4  # a mix-up would show


def test_full_queue_is_told_over_http(tmp_path: Path) -> None:
    app = service(Settings(data_dir=tmp_path), max_waiting=2)
    add_run(app)
    with served(app) as client, ThreadPoolExecutor(12) as threads:
        responses = list(threads.map(partial(send, client), [encoded(photo())] * 12))
    statuses = sorted(response.status_code for response in responses)
    assert statuses == [200] * statuses.count(200) + [503] * statuses.count(503)
    assert statuses.count(200) >= 2
    refused = [response for response in responses if response.status_code == 503]
    assert refused
    assert {(item.headers["retry-after"], item.json()["code"]) for item in refused} == {("1", "busy")}
