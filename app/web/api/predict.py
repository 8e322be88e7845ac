"""`POST /predict` and `POST /runs/{id}/predict`: a picture in, its class and all probabilities out."""

from typing import Any, Final

from fastapi import APIRouter, Request

from app.inference.client import PredictionDocument
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
"""The form is parsed by our own code, with limits, so its schema is stated here."""

PROBLEM: Final[dict[str, Any]] = {"content": {"application/problem+json": {}}}
RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    404: {"description": "No such run, or no model.", **PROBLEM},
    409: {"description": "The run has no usable model.", **PROBLEM},
    413: {"description": "More bytes than the limit.", **PROBLEM},
    415: {"description": "A format that is never accepted.", **PROBLEM},
    422: {"description": "Not a picture, damaged, or more pixels than the limit.", **PROBLEM},
    503: {"description": "Too many pictures waiting; see Retry-After.", **PROBLEM},
}


@router.post("/predict", responses=RESPONSES, openapi_extra=UPLOAD, response_model_exclude_unset=True)
async def predict(request: Request) -> PredictionDocument:
    """Classify a picture with the model of the newest passing run that trained a classifier."""
    return await _respond(request, None)


@router.post("/runs/{run_id}/predict", responses=RESPONSES, openapi_extra=UPLOAD, response_model_exclude_unset=True)
async def predict_with_run(request: Request, run_id: int) -> PredictionDocument:
    """Classify a picture with the model of one run; if it trained several, its kind decides which one is used."""
    return await _respond(request, run_id)


async def _respond(request: Request, run_id: int | None) -> PredictionDocument:
    data = await read_upload(request, request.app.state.settings.max_upload_bytes)
    return await classify_upload(request, data, run_id)


async def classify_upload(request: Request, data: bytes, run_id: int | None) -> PredictionDocument:
    """Return the answer for one upload, as REST and pages show it; `run_id` None means the newest passing run.

    Raises Problem for an unusable picture or model, or if too many requests wait.
    """
    try:
        chosen = await request.app.state.chooser.choose(run_id)
        prediction = await request.app.state.classifier.classify(data, chosen.path, [chosen.kind])
    except Refused as refusal:
        raise problem_of_refusal(refusal) from None
    document: PredictionDocument = prediction.document(chosen.run_id)
    return document
