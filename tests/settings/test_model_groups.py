"""The group of a model, by the settings that the gateway and the text services share."""

from __future__ import annotations

import pytest

from services.settings.gateway_settings import read_cluster
from services.settings.model_groups import DEFAULT, GroupShare, ModelGroups, parse_model_groups
from services.settings.setting import SettingError
from tests.case import case

MODELS = " large = org/llama-70b, gpt-4o ,qwen*;code=qwen-coder*,coder:7b; "
ADDRESSES = "large=large.svc:50051;code=10.0.0.1:1,10.0.0.2:1"


def groups(models: str = MODELS) -> ModelGroups:
    return parse_model_groups(models)


def test_a_whole_name_beats_prefixes_and_a_longer_prefix_a_shorter_one() -> None:
    for name, group in [
        ("org/llama-70b", "large"),
        ("gpt-4o", "large"),
        ("gpt-4o-mini", DEFAULT),
        ("qwen", "large"),
        ("qwen3-8b", "large"),
        ("qwen-coder", "code"),
        ("qwen-coder-30b", "code"),
        ("coder:7b", "code"),
        ("Qwen3", DEFAULT),
        ("", DEFAULT),
    ]:
        with case(name=name, group=group):
            assert groups().group(name) == group
            assert groups("a=qwen*;b=qwen-coder").group("qwen-coder") == "b"
            assert groups("a=qwen-coder;b=qwen-*").group("qwen-coder") == "a"


def test_without_groups_everything_is_served_everywhere() -> None:
    assert GroupShare().holds(("any", "thing"))
    assert read_cluster({}).share.holds(("any",))


@pytest.mark.parametrize(
    ("names", "served"),
    [
        (("org/llama-70b", "my-llama"), {"large"}),  # an unlisted alias does not add the default group
        (("small", "gpt-4o"), {"large"}),
        (("qwen3", "qwen-coder"), {"large", "code"}),
        (("small", "tiny"), {DEFAULT}),
    ],
)
def test_a_model_is_served_by_the_groups_of_its_names(names: tuple[str, ...], served: set[str]) -> None:
    for group in ("large", "code", DEFAULT):
        assert GroupShare(groups(), group).holds(names) == (group in served)


def test_wrong_group_error_names_the_right_group() -> None:
    reported = GroupShare(groups(), "code").elsewhere("my-llama", ("org/llama-70b", "my-llama"))
    assert (
        "`my-llama`" in reported
        and "'code'" in reported
        and "'large'" in reported
        and "ALLM_TEXT_GROUP_MODELS" in reported
    )


def test_invalid_list_of_groups_is_refused() -> None:
    for models in [
        "large",
        "large=",
        "=m",
        "Large=m",
        "a b=m",
        "a=m;a=n",
        "a=m;b=m",
        "a=m n",
        "a=m**",
        "a=*m",
        "-a=m",
        f"{'a' * 41}=m",
    ]:
        with case(models=models), pytest.raises(SettingError, match="ALLM_TEXT_GROUP_MODELS"):
            groups(models)


def test_addresses_and_the_own_group_must_be_of_groups_with_models() -> None:
    given = {"ALLM_TEXT_GROUP_MODELS": MODELS, "ALLM_GATEWAY_TEXT_GROUPS": ADDRESSES, "ALLM_TEXT_GROUP": "code"}
    read = read_cluster(given)
    assert read.groups == (("large", ("large.svc:50051",)), ("code", ("10.0.0.1:1", "10.0.0.2:1")))
    assert read.share.group == "code"
    for variable, value in {"ALLM_TEXT_GROUP": "other", "ALLM_GATEWAY_TEXT_GROUPS": "other=a:1"}.items():
        with pytest.raises(SettingError, match=f"{variable}='other'.*large, code"):
            read_cluster(given | {variable: value})
