"""Settings: defaults, and refusals that name the fix."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from services.settings.modality_settings import MIB
from services.settings.setting import SettingError
from services.settings.settings import Settings, load_settings, unknown_settings
from tests.case import case

# These need other variables or set several fields: their modules have separate tests.
TOGETHER = {
    "ALLM_TLS_CERT",
    "ALLM_TLS_KEY",
    "ALLM_SERVICE_TLS_CA",
    "ALLM_SERVICE_TLS_CERT",
    "ALLM_SERVICE_TLS_KEY",
    "ALLM_GATEWAY_TEXT_GROUPS",
    "ALLM_TEXT_GROUP_MODELS",
    "ALLM_TEXT_GROUP",
    "ALLM_OTLP_ENDPOINT",
}


class Recorded(dict):
    """An environment that records the variables read."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, **kwargs)
        self.asked: set[str] = set()

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)


def flat(settings: Settings) -> dict[str, object]:
    found: dict[str, object] = {}
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)
        values = dataclasses.asdict(value) if dataclasses.is_dataclass(value) else {field.name: value}
        # Their field names occur in other settings, too.
        prefix = f"{field.name}." if field.name in ("audio", "image", "residency", "cluster", "trace") else ""
        found |= {prefix + name: each for name, each in values.items()}
    return found


def test_the_url_of_redis_is_checked_and_never_shown() -> None:
    for url in (
        "redis://:s3cret@host:6379/0",
        "rediss://user:s3cret@[::1]/1",
        "unix:///run/redis.sock",
        "redis://host",
    ):
        settings = load_settings({"ALLM_REDIS_URL": url})
        assert settings.store.redis_url == url
        assert url not in repr(settings)
    for url in (
        "host:6379",
        "http://:s3cret@host",
        "redis://:s3cret@",
        "redis://:s3cret@host:x",
        "unix://",
        "redis://[s3cret",
        "s3cret",
    ):
        with pytest.raises(SettingError) as caught:
            load_settings({"ALLM_REDIS_URL": url})
        assert caught.value.variable == "ALLM_REDIS_URL"
        assert "s3cret" not in str(caught.value)


def test_the_interpreter_of_vllm_keeps_its_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment's python is a link to another one; only the link's own path identifies its packages."""
    monkeypatch.chdir(tmp_path)
    Path("python").symlink_to("/elsewhere/python")
    assert load_settings({"ALLM_VLLM_PYTHON": "./python"}).text.vllm_python == f"{tmp_path}/python"
    assert load_settings({"ALLM_VLLM_PYTHON": "~/p"}).text.vllm_python == str(Path.home() / "p")
    assert load_settings({}).text.vllm_python == ""


def test_the_address_of_ray_is_checked() -> None:
    for address in ("auto", "head:6379", "10.0.0.1:1", "[::1]:65535"):
        assert load_settings({"ALLM_RAY_ADDRESS": address}).text.ray_address == address
    for address in ("head", "head:", ":6379", "head:0", "head:65536", "ray://head:10001", "head:x"):
        with pytest.raises(SettingError, match=r"ALLM_RAY_ADDRESS=.* must be auto, or an address such as 10"):
            load_settings({"ALLM_RAY_ADDRESS": address})


def test_a_setting_of_an_earlier_release_names_its_successors() -> None:
    with pytest.raises(
        SettingError, match=r"^ALLM_IDENTITY_SECRET_FILE=.* ALLM_IDENTITY_KEY_FILE and ALLM_IDENTITY_PUB"
    ):
        load_settings({"ALLM_IDENTITY_SECRET_FILE": "/secret"})
    assert load_settings({"ALLM_IDENTITY_SECRET_FILE": " "}).auth.mode == "none"


def test_each_role_has_a_private_key_of_its_own() -> None:
    assert load_settings({"ALLM_HOME": "/h"}).auth.key_file_of("text") == Path("/h/identity/text.key")
    for given, expected in (("/k/ROLE/my-ROLE.pem", "/k/ROLE/my-text.pem"), ("/k/own.pem", "/k/own.pem")):
        assert load_settings({"ALLM_IDENTITY_KEY_FILE": given}).auth.key_file_of("text") == Path(expected)


def test_the_defaults_of_an_empty_environment() -> None:
    settings = load_settings({})
    assert settings.home == Path.home() / ".allm"
    assert settings.model.folder == settings.home / "models"
    assert settings.model.roots == (settings.model.folder,), "never the current folder, which may be anything"
    assert settings.model.publishers == ("openai/*", "nvidia/*")
    assert settings.models == settings.aliases == ()
    assert (settings.gateway.host, settings.gateway.port) == ("127.0.0.1", 8080)
    assert settings.gateway.max_body_bytes == settings.service.max_body_bytes == 32 * MIB
    assert settings.service.lifeline == -1
    assert settings.text.device == "auto"
    assert settings.text.prefix_cache is True
    assert settings.audio.max_audio_bytes == 25 * MIB
    assert settings.audio.cache_folder.is_relative_to(settings.home)
    assert settings.audio.upload_folder.is_relative_to(settings.home)
    assert settings.residency.folder.is_relative_to(settings.home)
    assert settings.residency.threshold == 0.9


def test_settings_cannot_be_changed_later() -> None:
    settings = load_settings({})
    for holder in (
        settings,
        settings.gateway,
        settings.service,
        settings.model,
        settings.text,
        settings.audio,
        settings.image,
        settings.residency,
        settings.store,
    ):
        name = dataclasses.fields(holder)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(holder, name, None)


def test_the_process_own_environment_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLM_PORT", "1234")
    assert load_settings().gateway.port == 1234
    assert load_settings({}).gateway.port == 8080


def test_every_value_is_taken_from_its_own_variable() -> None:
    changed = {
        "ALLM_HOME": ("/h", "home", Path("/h")),
        "ALLM_MODELS_DIR": ("/m", "folder", Path("/m")),
        "ALLM_MODEL_ROOTS": ("/a,/b", "roots", (Path("/a"), Path("/b"))),
        "ALLM_CATALOG": ("unix:/c", "catalog", "unix:/c"),
        "ALLM_REPLICA": ("text-7", "replica", "text-7"),
        "ALLM_ARTIFACTS": ("off", "artifacts", False),
        "ALLM_ARTIFACT_PUBLISHERS": ("me/*", "publishers", ("me/*",)),
        "ALLM_KEEP_CANONICAL": ("off", "keep_canonical", False),
        "ALLM_SUPPORTED_MODELS": ("/s.json", "supported", Path("/s.json")),
        "ALLM_MODELS_FILE": ("/m.yaml", "models_file", Path("/m.yaml")),
        "ALLM_TEXT_REPLICAS": ("2", "text_replicas", 2),
        "ALLM_MODELS": ("a=/x.gguf, b=/y=z.gguf", "models", (("a", Path("/x.gguf")), ("b", Path("/y=z.gguf")))),
        "ALLM_ALIASES": ("gpt-4o=a,o3=b", "aliases", (("gpt-4o", "a"), ("o3", "b"))),
        "ALLM_HOST": ("0.0.0.0", "host", "0.0.0.0"),  # noqa: S104
        "ALLM_PORT": ("0", "port", 0),
        "ALLM_ALLOWED_HOSTS": (" a.example , b.example,", "allowed_hosts", ("a.example", "b.example")),
        "ALLM_CORS_ORIGINS": ("https://a.example", "cors_origins", ("https://a.example",)),
        "ALLM_MAX_BODY_BYTES": ("2048", "max_body_bytes", 2048),
        "ALLM_LISTEN": ("unix:/s", "listen", "unix:/s"),
        "ALLM_METRICS_HOST": ("::1", "metrics_host", "::1"),
        "ALLM_METRICS_PORT": ("1", "metrics_port", 1),
        "ALLM_GATEWAY_METRICS_HOST": ("::1", "stats_host", "::1"),
        "ALLM_GATEWAY_METRICS_PORT": ("1", "stats_port", 1),
        "ALLM_GATEWAY_CONNECTIONS": ("100", "max_connections", 100),
        "ALLM_GATEWAY_CONNECTIONS_PER_ADDRESS": ("50", "address_connections", 50),
        "ALLM_GATEWAY_FIRST_BYTE_SECONDS": ("1.5", "first_byte_seconds", 1.5),
        "ALLM_GATEWAY_IDLE_SECONDS": ("90", "idle_seconds", 90.0),
        "ALLM_GATEWAY_BODY_SECONDS": ("60", "body_seconds", 60),
        "ALLM_GATEWAY_HEAP_BYTES": ("1073741824", "heap_bytes", 1024**3),
        "ALLM_LOG_LEVEL": ("DEBUG", "log_level", "debug"),
        "ALLM_LIFELINE_FD": ("7", "lifeline", 7),
        "ALLM_DRAIN_DELAY_SECONDS": ("0", "drain_delay_seconds", 0.0),
        "ALLM_DRAIN_SECONDS": ("1.5", "drain_seconds", 1.5),
        "ALLM_DEVICE": ("CPU", "device audio.device image.device", "cpu"),
        "ALLM_THREADS": ("3", "threads audio.threads image.threads", 3),
        "ALLM_CONTEXT_TOKENS": ("4096", "context_tokens", 4096),
        "ALLM_KV_TOKENS": ("8192", "kv_tokens", 8192),
        "ALLM_MAX_SEQUENCES": ("4", "max_sequences", 4),
        "ALLM_BATCH_TOKENS": ("64", "batch_tokens", 64),
        "ALLM_CHUNK_TOKENS": ("32", "chunk_tokens", 32),
        "ALLM_QUEUE_LIMIT": ("0", "queue_limit", 0),
        "ALLM_QUEUE_TOKENS": ("1000", "queue_tokens", 1000),
        "ALLM_BYTES_IN_FLIGHT": ("2097152", "bytes_in_flight", 2 * MIB),
        "ALLM_SLOW_CLIENT_SECONDS": ("5", "slow_client_seconds", 5.0),
        "ALLM_PREFIX_CACHE": ("off", "prefix_cache", False),
        "ALLM_DTYPE": ("float32", "dtype", "float32"),
        "ALLM_TENSOR_PARALLEL": ("2", "tensor_parallel", 2),
        "ALLM_VLLM_PYTHON": ("/v/bin/python", "vllm_python", "/v/bin/python"),
        "ALLM_VLLM_COMPILE": ("off", "vllm_compile", False),
        "ALLM_RAY_ADDRESS": ("10.0.0.1:6379", "ray_address", "10.0.0.1:6379"),
        "ALLM_REQUEST_SECONDS": ("0.1", "request_seconds", 0.1),
        "ALLM_STALL_SECONDS": ("1", "stall_seconds audio.stall_seconds image.stall_seconds", 1.0),
        "ALLM_LOAD_SECONDS": ("1", "load_seconds audio.load_seconds image.load_seconds", 1.0),
        "ALLM_AUDIO_REPLICAS": ("0", "audio_replicas", 0),
        "ALLM_IMAGE_REPLICAS": ("2", "image_replicas", 2),
        "ALLM_AUDIO_COMPUTE_TYPE": ("int8", "audio.compute_type", "int8"),
        "ALLM_AUDIO_BATCH": ("16", "audio.batch_windows", 16),
        "ALLM_AUDIO_WHOLE_WINDOWS": ("on", "audio.whole_windows", True),
        "ALLM_BEAM_SIZE": ("1", "audio.beam_size", 1),
        "ALLM_MAX_AUDIO_BYTES": ("2048", "audio.max_audio_bytes", 2048),
        "ALLM_MAX_AUDIO_SECONDS": ("60", "audio.max_audio_seconds", 60.0),
        "ALLM_AUDIO_DECODERS": ("2", "audio.decoders", 2),
        "ALLM_AUDIO_QUEUE": ("1", "audio.queue_limit", 1),
        "ALLM_AUDIO_REQUEST_SECONDS": ("0.1", "audio.request_seconds", 0.1),
        "ALLM_IMAGE_DTYPE": ("float16", "image.dtype", "float16"),
        "ALLM_IMAGE_BATCH": ("8", "image.batch_images", 8),
        "ALLM_IMAGE_QUEUE": ("1", "image.queue_limit", 1),
        "ALLM_IMAGE_REQUEST_SECONDS": ("0.1", "image.request_seconds", 0.1),
        "ALLM_MAX_IMAGE_BYTES": ("2048", "image.max_image_bytes", 2048),
        "ALLM_IMAGE_UPLOAD_BYTES": ("268435456", "image.upload_bytes", 256 * MIB),
        "ALLM_MAX_IMAGE_PIXELS": ("4096", "image.max_image_pixels", 4096),
        "ALLM_IMAGE_CODECS": ("2", "image.codecs", 2),
        "ALLM_IMAGE_METADATA": ("off", "image.metadata", False),
        "ALLM_IMAGE_FOLDER": ("/i", "image.folder", Path("/i")),
        "ALLM_IMAGE_FOLDER_BYTES": ("1048576", "image.folder_bytes", 1048576),
        "ALLM_IMAGE_HOSTS": ("A.example, [::1]:8443", "image.hosts", ("a.example", "[::1]:8443")),
        "ALLM_IMAGE_FETCH_SECONDS": ("0.5", "image.fetch_seconds", 0.5),
        "ALLM_PUBLIC_URL": ("https://ai.example.org/", "image.public_url", "https://ai.example.org"),
        "ALLM_MEMORY_THRESHOLD": ("0.5", "residency.threshold", 0.5),
        "ALLM_HOST_MEMORY_BYTES": ("1073741824", "residency.host_bytes", 1024 * MIB),
        "ALLM_DEVICE_MEMORY_BYTES": ("2147483648", "residency.device_bytes", 2048 * MIB),
        "ALLM_MODEL_MEMORY_BYTES": ("536870912", "residency.model_bytes", 512 * MIB),
        "ALLM_IDLE_SECONDS": ("600", "residency.idle_seconds", 600.0),
        "ALLM_MAX_LOADED_MODELS": ("2", "residency.max_models", 2),
        "ALLM_PRELOAD": ("a, b", "residency.preload", ("a", "b")),
        "CUDA_VISIBLE_DEVICES": ("1,0", "residency.visible_devices", "1,0"),
        "ALLM_HEALTH_LISTEN": ("0.0.0.0:50052", "health_listen", "0.0.0.0:50052"),
        "ALLM_GATEWAY_TEXT": ("text:50051, 10.0.0.1:2", "cluster.text", ("text:50051", "10.0.0.1:2")),
        "ALLM_GATEWAY_AUDIO": ("audio:50051", "cluster.audio", ("audio:50051",)),
        "ALLM_GATEWAY_IMAGE": ("image:50051", "cluster.image", ("image:50051",)),
        "ALLM_AUTH": ("keys", "auth mode", "keys"),
        "ALLM_AUTHORIZER": ("unix:/a", "authorizer", "unix:/a"),
        "ALLM_API_KEY": ("sk-allm-x", "api_key", "sk-allm-x"),
        "ALLM_IDENTITY_KEY_FILE": ("/text.key", "key_file", Path("/text.key")),
        "ALLM_IDENTITY_PUBLIC_KEYS_FILE": ("/public.keys", "public_keys_file", Path("/public.keys")),
        "ALLM_OTLP_CA_FILE": ("/ca.pem", "trace.ca_file", Path("/ca.pem")),
        "ALLM_OTLP_HEADERS": ("a=b", "trace.headers", (("a", "b"),)),
        "ALLM_TRACE_SAMPLING": ("0.5", "trace.sampling", 0.5),
        "ALLM_TRACE_PARENTS": ("ignore", "trace.parents", "ignore"),
        "ALLM_CONSOLE": ("off", "console", False),
        "ALLM_STORE": ("off", "enabled", False),
        "ALLM_STORE_DAYS": ("0.5", "days", 0.5),
        "ALLM_REDIS_URL": ("redis://h/0", "redis_url", "redis://h/0"),
    }
    environ = Recorded()
    defaults = flat(load_settings(environ))
    assert environ.asked - TOGETHER >= set(changed)
    for variable, (text, fields, expected) in changed.items():
        settings = flat(load_settings({variable: text}))
        assert [settings.pop(field) for field in fields.split()] == [expected] * len(fields.split()), variable
        # Other settings derive from these: folders, and the gateway's address.
        derived_from = ("ALLM_HOME", "ALLM_MODELS_DIR", "ALLM_HOST", "ALLM_PORT")
        others = {name: value for name, value in settings.items() if variable not in derived_from}
        assert all(defaults[name] == value for name, value in others.items()), f"{variable} changes nothing else"
        assert expected not in [defaults[field] for field in fields.split()], f"{variable}: the test must change it"


def test_public_address_defaults_to_the_listen_address() -> None:
    for host, url in (
        ("127.0.0.1", "http://127.0.0.1:8081"),
        ("0.0.0.0", "http://127.0.0.1:8081"),  # noqa: S104
        ("::", "http://[::1]:8081"),
        ("10.0.0.7", "http://10.0.0.7:8081"),
    ):
        assert load_settings({"ALLM_HOST": host, "ALLM_PORT": "8081"}).image.public_url == url
    for url in (
        "ai.example.org",
        "ftp://ai.example.org",
        "https://",
        "https://me@host",
        "https://host:x",
        "https://h?q=1",
    ):
        with pytest.raises(SettingError, match="ALLM_PUBLIC_URL"):
            load_settings({"ALLM_PUBLIC_URL": url})


def test_hosts_of_pictures_are_names_and_addresses_with_or_without_a_port() -> None:
    given = "A.example.org, b.org:8443,[::1]:443,::1,10.0.0.1:443,fe80::1"
    found = ("a.example.org", "b.org:8443", "[::1]", "[::1]", "10.0.0.1", "[fe80::1]")
    assert load_settings({"ALLM_IMAGE_HOSTS": given}).image.hosts == found
    for host in ("*.org", "https://a.org", "a/b", "a:0", "u@h", "a:99999", "[::1", "a?b", "a#b", "a:b", "a b", ":1"):
        with case(host=host), pytest.raises(SettingError, match="ALLM_IMAGE_HOSTS"):
            load_settings({"ALLM_IMAGE_HOSTS": host})


def test_models_are_stored_under_home_by_default() -> None:
    assert load_settings({"ALLM_HOME": "/srv/allm"}).model.folder == Path("/srv/allm/models")


def test_paths_may_begin_with_a_tilde_and_become_absolute() -> None:
    settings = load_settings({"ALLM_HOME": "~/x", "ALLM_MODELS_DIR": "weights", "ALLM_MODELS": "a=~/m.gguf"})
    assert settings.home == Path.home() / "x"
    assert settings.model.folder == Path.cwd() / "weights"
    assert settings.models == (("a", Path.home() / "m.gguf"),)


@pytest.mark.parametrize("value", ["", "   "])
def test_an_empty_variable_counts_as_unset(value: str) -> None:
    environ = Recorded()
    defaults = load_settings(environ)
    assert load_settings(dict.fromkeys(environ.asked, value)) == defaults


def test_a_wrong_value_is_refused_with_the_variable_and_its_bounds() -> None:
    for variable, value, allowed in [
        ("ALLM_PORT", "http", "a whole number from 0 to 65535"),
        ("ALLM_PORT", "80.0", "a whole number from 0 to 65535"),
        ("ALLM_PORT", "65536", "a whole number from 0 to 65535"),
        ("ALLM_PORT", "-1", "a whole number from 0 to 65535"),
        ("ALLM_PORT", "9" * 5000, "a whole number from 0 to 65535"),
        ("ALLM_MAX_SEQUENCES", "0", "a whole number from 1 to"),
        ("ALLM_MAX_BODY_BYTES", "1023", "a whole number from 1024 to"),
        ("ALLM_REQUEST_SECONDS", "nan", "a number of seconds from 0.1 to 86400.0"),
        ("ALLM_REQUEST_SECONDS", "inf", "a number of seconds from 0.1 to 86400.0"),
        ("ALLM_REQUEST_SECONDS", "0", "a number of seconds from 0.1 to 86400.0"),
        ("ALLM_REQUEST_SECONDS", "soon", "a number of seconds from 0.1 to 86400.0"),
        ("ALLM_DRAIN_SECONDS", "-0.5", "a number of seconds from 0.0 to 3600.0"),
        ("ALLM_DEVICE", "gpu", "one of auto, cuda, vulkan, mps, cpu"),
        ("ALLM_LOG_LEVEL", "loud", "one of debug, info, warning, error"),
        ("ALLM_PREFIX_CACHE", "true", "one of on, off"),
        ("ALLM_ARTIFACTS", "on", "one of auto, off"),
        ("ALLM_TEXT_REPLICAS", "0", "a whole number from 1 to 64"),
        ("ALLM_AUDIO_COMPUTE_TYPE", "int4", "one of auto, float32, float16"),
        ("ALLM_BEAM_SIZE", "0", "a whole number from 1 to 10"),
        ("ALLM_MAX_AUDIO_SECONDS", "0", "a number of seconds from 1.0 to"),
        ("ALLM_MODELS", "/path/m.gguf", "a comma-separated list of id=/path/m.gguf"),
        ("ALLM_MODELS", "=/path/m.gguf", "a comma-separated list of id=/path/m.gguf"),
        ("ALLM_MODELS", "a=/x.gguf,b=", "a comma-separated list of id=/path/m.gguf"),
        ("ALLM_ALIASES", "gpt-4o", "a comma-separated list of alias=id"),
        ("ALLM_CORS_ORIGINS", "*", "a comma-separated list of origins"),
        ("ALLM_CORS_ORIGINS", "app.example.org", "a comma-separated list of origins"),
        ("ALLM_CORS_ORIGINS", "https://", "a comma-separated list of origins"),
        ("ALLM_CORS_ORIGINS", "https://app.example.org/", "a comma-separated list of origins"),
        ("ALLM_CORS_ORIGINS", "https://*.example.org", "a comma-separated list of origins"),
        ("ALLM_CORS_ORIGINS", "ftp://app.example.org", "a comma-separated list of origins"),
    ]:
        with case(variable=variable, value=value, allowed=allowed):
            with pytest.raises(SettingError) as refusal:
                load_settings({variable: value})
            assert refusal.value.variable == variable
            assert refusal.value.allowed.startswith(allowed)
            assert str(refusal.value).startswith(f"{variable}=")
            assert f"it must be {allowed}" in str(refusal.value)


def test_variables_that_are_no_settings() -> None:
    given = dict.fromkeys(("ALLM_PROT", "ALLM_MODEL", "ALLM_COLOUR", "ALLM_PORT", "HOME", "ALLM_LIFELINE_FD"), "1")
    kubernetes = dict.fromkeys(("ALLM_TEXT_SERVICE_HOST", "ALLM_TEXT_SERVICE_PORT_GRPC", "ALLM_TEXT_PORT_1_TCP"), "1")
    assert unknown_settings(given | kubernetes) == {
        "ALLM_COLOUR": "",
        "ALLM_MODEL": "ALLM_MODELS",
        "ALLM_PROT": "ALLM_PORT",
    }
