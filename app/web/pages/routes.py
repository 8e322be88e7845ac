"""All pages in one router; the list comes first, because `/runs/rows` must not be parsed as a run's number."""

from fastapi import APIRouter

from app.web.pages import (
    auditlog,
    bulk,
    classify,
    compare,
    deliveries,
    explain,
    labels,
    launch,
    listing,
    live,
    login,
    previews,
    ranks,
    resources,
    run,
    status,
    storage,
    trends,
)

READING = (listing, bulk, labels, launch, live, run, previews, ranks, resources, compare, trends, classify, explain)
OPERATING = (storage, status, deliveries, auditlog, login)

router = APIRouter(include_in_schema=False)
for part in (*READING, *OPERATING):
    router.include_router(part.router)
