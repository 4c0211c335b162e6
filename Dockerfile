# One image for every process of ours: the web service, workers, reconciler, Flower and the `aftermind` command.
FROM python:3.12.12-slim-trixie AS build
WORKDIR /src
RUN pip install --no-cache-dir build
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY app app
COPY tasks tasks
COPY workers workers
RUN python -m build --wheel --outdir /wheels

FROM python:3.12.12-slim-trixie
COPY requirements-image.lock /tmp/
COPY --from=build /wheels /tmp/wheels
# The lock has the extra `all`, in the tested versions and with their hashes.
RUN pip install --no-cache-dir --require-hashes --requirement /tmp/requirements-image.lock \
 && pip install --no-cache-dir --no-deps /tmp/wheels/*.whl && pip check && rm -rf /tmp/wheels
RUN useradd --create-home --uid 10001 aftermind && install -d -o aftermind /var/lib/aftermind
USER aftermind
WORKDIR /var/lib/aftermind
# The spool lies here: a turn that is accepted while Redis is away is as safe as this volume.
ENV AFTERMIND_STATE_DIR=/var/lib/aftermind PYTHONUNBUFFERED=1
VOLUME /var/lib/aftermind
ENTRYPOINT ["aftermind"]
CMD ["web", "--host", "0.0.0.0"]
