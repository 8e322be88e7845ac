# The first stage fetches the browser files with npm, the second builds the wheel; the final image has only Python.
FROM node:22-slim AS assets
WORKDIR /src
COPY package.json package-lock.json .npmrc ./
RUN npm ci --ignore-scripts --no-audit --no-fund

FROM python:3.11-slim AS wheel
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
WORKDIR /src
COPY pyproject.toml README.md ./
COPY app app
COPY worker worker
COPY trainer trainer
COPY migrations migrations
COPY templates templates
COPY scripts scripts
COPY --from=assets /src/node_modules node_modules
RUN python scripts/assets.py && pip wheel --no-deps --wheel-dir /dist .

FROM python:3.11-slim
ENV PYTHONUNBUFFERED=1 PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 DDP_AUDIT_DATA_DIR=/data
COPY constraints.txt /tmp/
COPY --from=wheel /dist /tmp/dist
RUN pip install --constraint /tmp/constraints.txt "$(ls /tmp/dist/*.whl)[postgres]" && rm -r /tmp/dist /tmp/constraints.txt
ENTRYPOINT ["ddp-audit"]
CMD ["serve"]
