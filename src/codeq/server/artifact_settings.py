"""Settings of artifacts: where they are stored, and how large they may be."""

from typing import Annotated

from msgspec import Meta, Struct

from codeq.domain.artifacts import ArtifactLimits
from codeq.domain.limits import ARTIFACT_BYTES_MAX, TASK_ARTIFACT_BYTES_MAX, TASK_ARTIFACTS_MAX


class ArtifactSettings(Struct, frozen=True, kw_only=True):
    url: Annotated[
        str,
        Meta(
            description="Where the files of results are stored: s3://bucket/prefix, gs://bucket/prefix, "
            "az://container/prefix or file:///directory; credentials come from the environment. Empty: the "
            "directory `artifacts` of the data directory; with tasks in Redis, none."
        ),
    ] = ""
    artifact_bytes_max: Annotated[int, Meta(description="Bytes of one artifact; 0 for no limit.", ge=0)] = (
        ARTIFACT_BYTES_MAX
    )
    task_bytes_max: Annotated[int, Meta(description="Bytes of all artifacts of a task; 0 for no limit.", ge=0)] = (
        TASK_ARTIFACT_BYTES_MAX
    )
    task_artifacts_max: Annotated[int, Meta(description="Artifacts of one task.", ge=1, le=1000)] = TASK_ARTIFACTS_MAX
    uploads_max: Annotated[
        int, Meta(description="Uploads at once, each with up to 9 MB of memory; 503 past it.", ge=1, le=10_000)
    ] = 32
    downloads_max: Annotated[
        int, Meta(description="Downloads at once, each with up to 3 MB of memory; 503 past it.", ge=1, le=10_000)
    ] = 128
    sweep_interval_seconds: Annotated[
        float, Meta(description="How often files that no result names are looked for.", gt=0, le=86_400)
    ] = 600.0

    def limits(self, tenant_bytes: int) -> ArtifactLimits:
        return ArtifactLimits(
            artifact_bytes=self.artifact_bytes_max,
            task_bytes=self.task_bytes_max,
            tenant_bytes=tenant_bytes,
            task_artifacts=self.task_artifacts_max,
        )
