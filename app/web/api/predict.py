"""`POST /predict` and `POST /runs/{id}/predict`: a picture in, its class and all probabilities out."""

from typing import Any, Final

import orjson
from fastapi import APIRouter, Request, Response

from app.inference.errors import Refused
from app.web.http.uploads import FIELD, problem_of_refusal, read_upload

router = APIRouter(tags=["classification"])

UPLOAD: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": [FIELD],
                    "properties": {FIELD: {"type": "string", "format": "binary", "description": "The picture."}},
                }
            }
        },
    }
}
"""The form is read by hand, bounded, so the schema is stated by hand."""

ANSWER: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["class", "confidence", "probabilities", "run_id", "model_sha256", "seconds"],
    "properties": {
        "class": {"type": "string"},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "probabilities": {
            "type": "object",
            "additionalProperties": {"type": "number"},
            "description": "They sum to 1.",
        },
        "run_id": {"type": ["integer", "null"], "description": "The run whose model answered."},
        "model_sha256": {"type": "string"},
        "seconds": {"type": "number", "description": "From the whole upload to the answer."},
        "frame": {"type": "integer", "description": "Frame that was used, only for a file with several."},
    },
}
PROBLEM: Final[dict[str, Any]] = {"content": {"application/problem+json": {}}}
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The picture's class.", "content": {"application/json": {"schema": ANSWER}}},
    404: {"description": "No such run, or no model to answer with.", **PROBLEM},
    409: {"description": "The run has no usable model.", **PROBLEM},
    413: {"description": "More bytes than the limit.", **PROBLEM},
    415: {"description": "A format that is never accepted.", **PROBLEM},
    422: {"description": "No picture, damaged, or more pixels than the limit.", **PROBLEM},
    503: {"description": "Too many pictures waiting; see Retry-After.", **PROBLEM},
}


@router.post("/predict", responses=RESPONSES, openapi_extra=UPLOAD, response_class=Response)
async def predict(request: Request) -> Response:
    """Classify a picture with the model of the newest passing run that trained a classifier."""
    return await _respond(request, None)


@router.post("/runs/{run_id}/predict", responses=RESPONSES, openapi_extra=UPLOAD, response_class=Response)
async def predict_with_run(request: Request, run_id: int) -> Response:
    """Classify a picture with the model of one run; where it trained several, its kind names the one that answers."""
    return await _respond(request, run_id)


async def _respond(request: Request, run_id: int | None) -> Response:
    data = await read_upload(request, request.app.state.settings.max_upload_bytes)
    document = await classify_upload(request, data, run_id)
    return Response(orjson.dumps(document), media_type="application/json")


async def classify_upload(request: Request, data: bytes, run_id: int | None) -> dict[str, Any]:
    """Return the answer for one upload, as REST and pages give it; `run_id` None means the newest passing run.

    Raises Problem for a picture or a model that cannot be answered, or when too much waits.
    """
    try:
        chosen = await request.app.state.chooser.choose(run_id)
        prediction = await request.app.state.classifier.classify(data, chosen.path, [chosen.kind])
    except Refused as refusal:
        raise problem_of_refusal(refusal) from None
    document: dict[str, Any] = prediction.document(chosen.run_id)
    return document
