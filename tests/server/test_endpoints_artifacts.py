"""Files of results over HTTP: upload, resume, submit, list, download, and who may do what."""

import os
from typing import Any

import pytest
from tests.server.artifact_calls import inline, path, put, sha256, submit
from tests.server.server_process import Server, Tenant, answered

from codeq.domain.limits import ARTIFACT_PART_BYTES as PART
from codeq.wire import paths

BIG = os.urandom(2 * PART + 12_345)


def uploaded(tenant: Tenant, name: str = "out.bin", content: bytes = b"hello", **headers: str) -> dict[str, Any]:
    """Returns a completed task with one uploaded artifact."""
    task = tenant.held()
    answered(put(tenant, task, name, content, headers=headers), 201)
    answered(submit(tenant, task, {"name": name}), 200)
    return task


def test_a_result_lists_files_that_it_contains_links_and_names(tenant: Tenant) -> None:
    task = tenant.held()
    stored = answered(put(tenant, task, "big.bin", BIG, headers={"content-type": "application/x-big"}), 201)
    assert stored == {
        "name": "big.bin", "offset": len(BIG), "complete": True, "contentType": "application/x-big",
        "sha256": sha256(BIG),
    }  # fmt: skip

    result = answered(
        submit(tenant, task, {"name": "big.bin"}, inline("a.csv", b"1,2", contentType="text/csv"),
               {"name": "elsewhere", "url": "https://example.com/x"}),
        200,
    )  # fmt: skip

    at = path(task)
    expected = [
        {"name": "big.bin", "url": f"{at}/big.bin", "contentType": "application/x-big", "size": len(BIG),
         "sha256": sha256(BIG)},
        {"name": "a.csv", "url": f"{at}/a.csv", "contentType": "text/csv", "size": 3, "sha256": sha256(b"1,2")},
        {"name": "elsewhere", "url": "https://example.com/x", "contentType": "application/octet-stream"},
    ]  # fmt: skip
    assert result["artifacts"] == expected
    assert result["result"] == {"ok": True}
    assert answered(tenant.producer.get(at), 200)["artifacts"] == expected
    assert answered(tenant.producer.get(paths.RESULT.format(id=task["id"])), 200)["result"] == result
    assert answered(submit(tenant, task, inline("other", b"x")), 200) == result, "a repeat gets the first answer"
    shown = tenant.task(task["id"])
    assert (shown["artifacts"], shown["artifactBytes"]) == (3, len(BIG) + 3)
    last = answered(tenant.producer.get(paths.HISTORY.format(id=task["id"])), 200)["events"][-1]
    assert (last["move"], last["artifacts"], last["artifactBytes"]) == ("complete", 3, len(BIG) + 3)
    assert tenant.producer.get(f"{at}/big.bin").content == BIG
    assert tenant.producer.get(f"{at}/a.csv").content == b"1,2"
    assert "link" in answered(tenant.producer.get(f"{at}/elsewhere"), 400)["error"]


def test_nothing_is_visible_before_the_result(tenant: Tenant) -> None:
    task = tenant.held()
    answered(put(tenant, task, "x", b"1"), 201)
    assert answered(tenant.producer.get(path(task)), 200) == {"artifacts": []}
    answered(tenant.producer.get(path(task, "x")), 404)


def test_a_failed_task_has_artifacts_too(tenant: Tenant) -> None:
    task = tenant.held()
    answered(submit(tenant, task, inline("trace.txt", b"boom"), status="FAILED", error="boom"), 200)
    assert tenant.producer.get(path(task, "trace.txt")).content == b"boom"


def test_the_results_of_a_batch_have_artifacts(tenant: Tenant) -> None:
    tasks = [tenant.held(), tenant.held()]
    results = [
        {"taskId": tasks[0]["id"], "status": "COMPLETED", "artifacts": [inline("a", b"1")]},
        {"taskId": tasks[1]["id"], "status": "COMPLETED", "artifacts": [inline("..", b"2")]},
    ]
    first, second = answered(tenant.worker.post(paths.RESULTS_BATCH, {"results": results}), 200)["results"]
    assert first["result"]["artifacts"][0]["size"] == 1
    assert second["code"] == "invalid"
    assert tenant.task(tasks[1]["id"])["status"] == "IN_PROGRESS"


def test_an_empty_file_is_a_file(tenant: Tenant) -> None:
    task = uploaded(tenant, "empty", b"")
    answer = tenant.producer.get(path(task, "empty"))
    assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "0")
    ranged = tenant.producer.request("GET", path(task, "empty"), headers={"range": "bytes=0-0"})
    assert (ranged.status_code, ranged.headers["content-range"]) == (416, "bytes */0")


def test_an_upload_continues_where_its_last_part_ended(tenant: Tenant) -> None:
    task = tenant.held()
    more = {"upload-complete": "?0", "upload-length": str(len(BIG))}
    first = put(tenant, task, "b", BIG[: PART + 100], headers=more)
    assert answered(first, 202) == {"name": "b", "offset": PART, "complete": False}
    assert (first.headers["upload-offset"], first.headers["upload-complete"]) == (str(PART), "?0")

    asked = tenant.worker.request("HEAD", path(task, "b") + f"?leaseToken={task['leaseToken']}")
    assert (asked.status_code, asked.headers["upload-offset"], asked.content) == (200, str(PART), b"")
    elsewhere = put(tenant, task, "b", b"x", headers={"upload-offset": str(PART + 100)})
    assert answered(elsewhere, 409) | {"error": ""} == {"error": "", "code": "upload-offset", "offset": PART}
    assert elsewhere.headers["upload-offset"] == str(PART)

    last = put(tenant, task, "b", BIG[PART:], headers={"upload-offset": str(PART), "upload-length": str(len(BIG))})
    assert answered(last, 201)["sha256"] == sha256(BIG)
    again = put(tenant, task, "b", BIG[PART:], headers={"upload-offset": str(PART)})
    assert answered(again, 409)["offset"] == len(BIG)
    state = answered(tenant.worker.get(path(task, "b"), leaseToken=task["leaseToken"]), 200)
    assert (state["complete"], state["offset"]) == (True, len(BIG))
    answered(submit(tenant, task, {"name": "b"}), 200)
    assert tenant.producer.get(path(task, "b")).content == BIG


def test_content_range_says_which_bytes_of_a_file_arrive(tenant: Tenant) -> None:
    task, size = tenant.held(), len(BIG)
    tail = {"content-range": f"bytes {PART}-{size - 1}/{size}"}
    assert answered(put(tenant, task, "b", BIG[PART:], headers=tail), 409)["offset"] == 0
    answered(put(tenant, task, "b", BIG[:PART], headers={"content-range": f"bytes 0-{PART - 1}/{size}"}), 202)
    for wrong in (
        "bytes 5-7/10", "bytes 0-2/2", "bytes 2-0/10", "bytes */10", "bytes 0-0", "items 0-0/1", f"bytes 0-{10**20}/*",
        "bytes 0-0/1, bytes 0-0/1", "0-0/1",
    ):  # fmt: skip
        assert "content-range" in answered(put(tenant, task, "b", b"1", headers={"content-range": wrong}), 400)["error"]
    for contradiction in ({"upload-offset": "0"}, {"upload-length": "7"}, {"upload-complete": "?0"}):
        answered(put(tenant, task, "b", BIG[PART:], headers=tail | contradiction), 400)
    answered(put(tenant, task, "b", iter([BIG[PART:]]), headers=tail), 400)  # chunked: nothing says where it ends
    assert answered(put(tenant, task, "b", BIG[PART:], headers=tail), 201)["sha256"] == sha256(BIG)
    answered(submit(tenant, task, {"name": "b"}), 200)
    assert tenant.producer.get(path(task, "b")).content == BIG


def test_the_last_upload_of_a_name_counts_and_a_hash_chooses_another(tenant: Tenant) -> None:
    first, second = tenant.held(), None
    answered(put(tenant, first, "x", b"old"), 201)
    answered(put(tenant, first, "x", b"new"), 201)
    answered(submit(tenant, first, {"name": "x"}), 200)
    assert tenant.producer.get(path(first, "x")).content == b"new"

    second = tenant.held()
    answered(put(tenant, second, "x", b"old"), 201)
    answered(put(tenant, second, "x", b"new"), 201)
    answered(submit(tenant, second, {"name": "x", "sha256": sha256(b"old")}), 200)
    assert tenant.producer.get(path(second, "x")).content == b"old"


def test_what_arrives_is_compared_with_what_was_announced(tenant: Tenant) -> None:
    task = tenant.held()
    right = {"repr-digest": "sha-256=:LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=:"}
    answered(put(tenant, task, "x", b"hello", headers=right), 201)
    assert answered(put(tenant, task, "y", b"hallo", headers=right), 400)["code"] == "digest-mismatch"
    assert answered(put(tenant, task, "y", b"hallo", headers={"upload-length": "6"}), 400)["code"] == "digest-mismatch"
    assert "upload" in answered(submit(tenant, task, {"name": "y"}), 400)["error"]
    for digest in ("sha-256=:AAAA:", "sha-256=LPJNul", "sha-256=:!:"):
        answered(put(tenant, task, "z", b"hello", headers={"repr-digest": digest}), 400)


def test_a_result_cannot_name_what_was_not_uploaded(tenant: Tenant) -> None:
    task = tenant.held()
    answered(put(tenant, task, "half", BIG[:PART], headers={"upload-complete": "?0"}), 202)
    for missing in ({"name": "never"}, {"name": "half"}, {"name": "x", "sha256": "0" * 64}):
        assert "upload" in answered(submit(tenant, task, missing), 400)["error"]
    assert tenant.task(task["id"])["status"] == "IN_PROGRESS"


def test_check_69_only_the_holder_of_the_lease_uploads(tenant: Tenant, server: Server) -> None:
    task = tenant.held()
    other = tenant.worker_named("somebody-else")
    assert answered(put(tenant, task, "x", b"1", caller=other), 403)["code"] == "not-owner"
    assert answered(put(tenant, task, "x", b"1", token=task["leaseToken"] + 1), 403)["code"] == "not-owner"
    answered(put(tenant, task, "x", b"1", caller=tenant.producer), 401)
    strangers = server.tenant()
    answered(put(strangers, task, "x", b"1"), 404)
    answered(put(tenant, {**task, "id": "0" * 36}, "x", b"1"), 404)
    answered(put(tenant, task, "x", b"1", token=None), 201)
    answered(submit(tenant, task), 200)
    assert answered(put(tenant, task, "x", b"1"), 409)["code"] == "not-in-progress"
    where = f"{path(task, 'x')}?leaseToken={task['leaseToken']}"
    answered(tenant.worker.request("GET", where), 409)
    answered(tenant.worker.request("DELETE", where), 409)
    answered(strangers.worker.request("DELETE", where), 404)


def test_a_worker_uploads_for_the_commands_of_its_token_only(tenant: Tenant) -> None:
    task = tenant.held()
    narrow = tenant.worker_named(f"{tenant.name}-worker", commands=["other"])
    for query in ("", f"?leaseToken={task['leaseToken']}"):
        answered(narrow.request("GET", path(task, "x") + query), 404)
    assert answered(put(tenant, task, "x", b"1", caller=narrow), 403)["code"] == "forbidden"
    without = tenant.worker_named(f"{tenant.name}-worker", scopes=["codeq:claim"])
    answered(put(tenant, task, "x", b"1", caller=without), 403)


def test_what_one_delivery_uploads_the_next_does_not_have(tenant: Tenant) -> None:
    task = tenant.held()
    answered(put(tenant, task, "x", b"of the first"), 201)
    answered(tenant.worker.post(paths.NACK.format(id=task["id"]), {"delaySeconds": 0}), 200)
    again = tenant.claim()
    assert answered(put(tenant, task, "x", b"late"), 403)["code"] == "not-owner"
    answered(submit(tenant, again, {"name": "x"}), 400)
    answered(put(tenant, again, "x", b"of the second"), 201)
    answered(submit(tenant, again, {"name": "x"}), 200)
    assert tenant.producer.get(path(task, "x")).content == b"of the second"


def test_check_70_another_tenant_sees_nothing(tenant: Tenant, server: Server) -> None:
    task = uploaded(tenant)
    stranger = server.tenant()
    unknown = {**task, "id": "01a1ecef-bfc8-7001-8623-984b35e40000"}
    for where in (path(task), path(task, "out.bin")):
        theirs = answered(stranger.producer.get(where), 404)
        nobodys = answered(stranger.producer.get(where.replace(task["id"], unknown["id"])), 404)
        assert theirs["error"].replace(task["id"], "") == nobodys["error"].replace(unknown["id"], "")
    answered(server.request("GET", path(task, "out.bin"), token=None), 401)
    narrow = tenant.worker_named("reader", commands=["other"])
    answered(narrow.get(path(task, "out.bin")), 404)


def test_an_upload_can_be_deleted_before_the_result(tenant: Tenant) -> None:
    task = tenant.held()
    answered(put(tenant, task, "x", b"1"), 201)
    where = f"{path(task, 'x')}?leaseToken={task['leaseToken']}"
    answered(tenant.worker.request("GET", where), 200)
    assert tenant.worker.request("DELETE", where).status_code == 204
    answered(tenant.worker.request("GET", where), 404)
    answered(submit(tenant, task, {"name": "x"}), 400)


RANGES = {
    "bytes=0-0": (206, slice(0, 1)), "bytes=5-": (206, slice(5, None)), "bytes=-5": (206, slice(-5, None)),
    f"bytes={PART - 2}-{PART + 1}": (206, slice(PART - 2, PART + 2)), "bytes=0-999999999999": (206, slice(None)),
    f"bytes={len(BIG) - 1}-": (206, slice(-1, None)), "bytes=-999999999999": (206, slice(None)),
    f"bytes={len(BIG)}-": (416, None), "bytes=-0": (416, None), "bytes=9-5": (200, slice(None)),
    "bytes=0-1,3-4": (200, slice(None)), "items=0-1": (200, slice(None)), "bytes=a-b": (200, slice(None)),
    "bytes=": (200, slice(None)), "bytes=-": (200, slice(None)), "bytes=0x1-2": (200, slice(None)),
    f"bytes={'9' * 400}-": (200, slice(None)), "bytes=٣-٤": (200, slice(None)),
}  # fmt: skip


def test_a_download_serves_any_range(tenant: Tenant) -> None:
    task = uploaded(tenant, "b", BIG)
    for wanted, (status, part) in RANGES.items():
        headers = {"range": wanted.encode()}
        answer = tenant.producer.request("GET", path(task, "b"), headers=headers)
        assert answer.status_code == status, wanted
        if part is not None:
            assert answer.content == BIG[part], wanted
    whole = tenant.producer.request("HEAD", path(task, "b"))
    assert (whole.headers["content-length"], whole.headers["accept-ranges"]) == (str(len(BIG)), "bytes")
    head = tenant.producer.request("HEAD", path(task, "b"), headers={"range": "bytes=0-0"})
    assert (head.status_code, head.headers["content-length"]) == (200, str(len(BIG))), "ranges are for GET alone"
    etag = whole.headers["etag"]
    for condition, status in ((etag, 206), ('"other"', 200), (f"W/{etag}", 200)):
        ranged = {"range": "bytes=0-1", "if-range": condition}
        assert tenant.producer.request("GET", path(task, "b"), headers=ranged).status_code == status


def test_check_70_a_download_cannot_act_as_a_page(tenant: Tenant) -> None:
    task = tenant.held()
    answered(submit(tenant, task, inline("'; x=1 é(b)", b"<script>alert(1)</script>", contentType="text/html")), 200)
    [view] = answered(tenant.producer.get(path(task)), 200)["artifacts"]
    answer = tenant.producer.get(view["url"])
    assert answer.content == b"<script>alert(1)</script>"
    assert answer.headers["content-disposition"].startswith("attachment; filename=\"'; x=1 _(b)\"; filename*=UTF-8''")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
    assert str(tenant.server.data) not in str(answer.headers)


@pytest.mark.parametrize(
    "name",
    ["../x", "..", ".", "a/b", "a\\b", "/etc/passwd", "a\0b", "a\nb", "x" * 201, "CON", "con.txt",
     "CONIN$", "conout$.txt", "a.", "a ", " a",
     "e\u0301", "a\u202eb", "a:b", "a*b", "\ufeffa", "\u200ba", ""],
)  # fmt: skip
def test_check_67_a_hostile_name_is_refused_and_nothing_is_written(name: str, tenant: Tenant) -> None:
    task = tenant.held()
    assert answered(submit(tenant, task, inline(name, b"x")), 400)["code"] == "invalid"
    assert not list((tenant.server.data / "artifacts").glob(f"{tenant.name}/*"))


@pytest.mark.parametrize(
    ("name", "status"),
    [("..%2f..%2fx", 404), ("%2e%2e", 400), ("a%00b", 400), ("a%5cb", 400), ("%ff", 400), ("e%cc%81", 400),
     ("CON", 400), ("x" * 300, 400), ("a%20", 400), ("%E2%80%AE", 400)],
)  # fmt: skip
def test_check_67_a_hostile_name_in_a_path_is_refused(name: str, status: int, tenant: Tenant) -> None:
    task = tenant.held()
    answered(put(tenant, task, name, b"x"), status)
    assert not list((tenant.server.data / "artifacts").glob(f"{tenant.name}/*"))


@pytest.mark.parametrize(
    "artifacts",
    [
        [inline("a.txt", b"1"), inline("A.txt", b"2")],
        [inline("ß", b"1"), inline("SS", b"2")],
        [{"name": "x", "contentBase64": "!"}],
        [{"name": "x", "contentBase64": "AA", "url": "https://example.com"}],
        [{"name": "x", "url": "javascript:alert(1)"}],
        [{"name": "x", "url": "file:///etc/passwd"}],
        [{"name": "x", "url": "data:text/html,x"}],
        [inline("x", b"1", contentType="text/html\r\nset-cookie: a=b")],
        [inline("x", b"1", contentType="x" * 300 + "/y")],
        [{"name": "x", "path": "/etc/passwd"}],
        [inline(str(number), b"1") for number in range(65)],
        "x",
    ],
    ids=str,
)
def test_check_71_artifacts_that_are_not_acceptable_leave_the_task_with_its_worker(
    artifacts: Any, tenant: Tenant
) -> None:
    task = tenant.held()
    answered(submit(tenant, task, artifacts=artifacts), 400)
    assert tenant.task(task["id"])["status"] == "IN_PROGRESS"
    assert not list((tenant.server.data / "artifacts").glob(f"{tenant.name}/*"))


def test_check_69_too_much_inside_a_result_is_refused(tenant: Tenant) -> None:
    task = tenant.held()
    halves = [inline("a", bytes(5 << 20)), inline("b", bytes(5 << 20))]
    assert answered(submit(tenant, task, *halves), 413)["code"] == "artifact-too-large"
    answered(submit(tenant, task, inline("a", bytes(6 << 20))), 200)
    assert tenant.producer.get(path(task, "a")).content == bytes(6 << 20)


def test_bad_headers_of_an_upload_are_refused(tenant: Tenant) -> None:
    task = tenant.held()
    for headers in (
        {"upload-offset": "-1"}, {"upload-offset": "x"}, {"upload-length": "1e9"}, {"content-encoding": "gzip"},
        {"content-type": "nonsense"}, {"upload-offset": "9" * 30}, {"upload-complete": "?2"}, {"upload-complete": "1"},
        {"repr-digest": "junk"}, {"repr-digest": "sha-256"}, {"repr-digest": "md5=x, sha-256=:AAAA:"},
    ):  # fmt: skip
        assert put(tenant, task, "x", b"1", headers=headers).status_code in (400, 415), headers
    answered(put(tenant, task, "x", b"1", token="x"), 400)
    answered(tenant.worker.request("PUT", path(task, "x") + "?lease=1", content=b"1"), 400)
