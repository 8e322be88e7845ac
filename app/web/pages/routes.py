"""Every page in one router; the list comes first, since `/runs/rows` must not be taken for a run's number."""

from fastapi import APIRouter

from app.web.pages import audit, classify, compare, explain, launch, listing, live, login, resources, run, trends

router = APIRouter(include_in_schema=False)
for part in (listing, launch, live, run, resources, compare, trends, classify, explain, audit, login):
    router.include_router(part.router)
