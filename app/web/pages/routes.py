"""Every page in one router; the list comes first, since `/runs/rows` must not be taken for a run's number."""

from fastapi import APIRouter

from app.web.pages import classify, compare, explain, launch, listing, live, login, run, trends

router = APIRouter(include_in_schema=False)
for part in (listing, launch, live, run, compare, trends, classify, explain, login):
    router.include_router(part.router)
