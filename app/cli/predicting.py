"""`ddp-audit predict`: classify an image with a run's model, or with a file's."""

from pathlib import Path
from typing import Annotated, Any

import typer

from app.cli.client import local_settings, log_warnings, open_client
from app.cli.exits import CommandError, Exit
from app.cli.output import AsJson, emit, say, table


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("predict")(predict)


def predict(
    image: Annotated[Path, typer.Argument(help="A picture file.", metavar="IMAGE")],
    *,
    run: Annotated[int | None, typer.Option(help="Use this run's model; default: the newest passing run's.")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="Use this model file, on this machine.")] = None,
    as_json: AsJson = False,
) -> None:
    """Classify a picture; the answer is that of the REST endpoint."""
    if run is not None and checkpoint is not None:
        raise CommandError(Exit.USAGE, "--run and --checkpoint cannot be combined; give one of them")
    document = _by_run(image, run) if checkpoint is None else _by_file(image, checkpoint)
    if as_json:
        emit(document)
        return
    say(f"{document['class']} ({document['confidence']:.1%})")
    if document.get("frame") is not None:
        say(f"the file has several frames; this is the answer for frame {document['frame']}, the first one")
    ordered = sorted(document["probabilities"].items(), key=lambda item: -item[1])
    table(["class", "probability"], [[name, f"{value:.4f}"] for name, value in ordered])


def _by_run(image: Path, run: int | None) -> dict[str, Any]:
    try:
        data = image.read_bytes()
    except OSError as error:
        raise CommandError(Exit.USAGE, f"{image} cannot be read: {error.strerror}") from None
    path = "/predict" if run is None else f"/runs/{run}/predict"
    document: dict[str, Any] = open_client().post(path, files={"file": (image.name, data, "application/octet-stream")})
    return document


def _by_file(image: Path, checkpoint: Path) -> dict[str, Any]:
    from app.inference.errors import Refused
    from app.inference.local import classify_files

    settings = local_settings()
    log_warnings(settings)
    limits = {"max_pixels": settings.max_image_pixels, "max_bytes": settings.max_upload_bytes}
    if not checkpoint.is_file():
        raise CommandError(Exit.NOT_FOUND, f"there is no model file {checkpoint}")
    try:
        return classify_files(checkpoint, [image], **limits)[0].document(None).model_dump(exclude_unset=True)
    except Refused as refusal:
        document = {"code": refusal.code, "status": refusal.status, "detail": refusal.detail}
        raise CommandError(Exit.USAGE, refusal.detail, document) from None
