"""Loads a configuration: YAML in, a `BrokerConfig` out, or every problem at once."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from broker_client.config import (
    BindingConfig,
    BrokerConfig,
    ConnectionConfig,
    ExchangeConfig,
    PublicationConfig,
    QueueConfig,
    SubscriptionConfig,
    VhostConfig,
)
from broker_client.config.expand import ENTITIES, HOISTED, connection_section, expand
from broker_client.config.lint import findings
from broker_client.config.problems import complaints_of
from broker_client.config.shorthand import binding_section
from broker_client.config.tree import Reader, Section, Spot, joined, locate, stated
from broker_client.config.unknown_names import unknown_names
from broker_client.config.values import YAML_CONTEXT, Settings
from broker_client.errors import ConfigError, Problem

log: logging.Logger = logging.getLogger("broker_client.config")

Source = str | os.PathLike[str] | Mapping[str, object] | BrokerConfig


def load_config(
    source: Source,
    *,
    environ: Mapping[str, str] | None = None,
    default_vhost: bool = False,
) -> BrokerConfig:
    """The configuration in `source`, complete and checked.

    Likely mistakes are logged as warnings, and kept in `BrokerConfig.warnings`.

    Args:
        source: path of a YAML or JSON file; or what such a file would hold, as a mapping; or a
            `BrokerConfig` made in Python, which is checked and returned.
        environ: where ``${NAME}`` is looked up; the process's environment when left out.
        default_vhost: a file without ``vhosts`` has the vhost ``/``, as suits a server.

    Raises:
        ConfigError: it cannot be used. `problems` lists everything that is wrong.
    """
    if isinstance(source, BrokerConfig):
        loaded = _Loaded(source, []) if source.is_checked else _finished(source, None, [], None)
    elif isinstance(source, Mapping):
        loaded = _from_mapping(source, environ)
    else:
        loaded = _from_file(os.fspath(source), environ, default_vhost)
    # No frame of the traceback may hold what was read: with its locals shown, as rich does, it
    # would show passwords.
    del source, environ
    return _config_of(loaded)


def load_text(
    text: str, file: str | None = None, *, environ: Mapping[str, str] | None = None
) -> BrokerConfig:
    """The configuration in `text`, YAML or JSON, as `load_config` reads it from `file`.

    Raises:
        ConfigError: it cannot be used.
    """
    loaded = _from_text(text, file, environ)
    del text, environ
    return _config_of(loaded)


class _Loaded(NamedTuple):
    """A configuration, or what is wrong with it."""

    config: BrokerConfig | None
    problems: list[Problem]


def _config_of(loaded: _Loaded) -> BrokerConfig:
    config, problems = loaded
    if config is None:
        raise ConfigError(problems)
    return config


def _from_mapping(source: Mapping[str, object], environ: Mapping[str, str] | None) -> _Loaded:
    reader = Reader(os.environ if environ is None else environ)
    return _complete(reader.from_mapping(source), reader.problems, None)


def _from_text(
    text: str,
    file: str | None,
    environ: Mapping[str, str] | None,
    default_vhost: bool = False,
) -> _Loaded:
    reader = Reader(os.environ if environ is None else environ)
    from broker_client.config.yaml_reader import YamlReader  # PyYAML takes a while to import

    tree = YamlReader(reader).tree(text)
    if default_vhost:
        tree.setdefault("vhosts", Section({"/": Section()}))
    return _complete(tree, reader.problems, file)


def _from_file(
    file: str, environ: Mapping[str, str] | None, default_vhost: bool = False
) -> _Loaded:
    if "://" in file:
        # It is not repeated: it may hold a password.
        text = "is an address; give a file or a mapping in which a vhost has it as `connection`"
        return _Loaded(None, [Problem("", text, file.partition("://")[0] + "://...")])
    if "\n" in file:
        text = "is YAML, where the path of a file is expected; load it with yaml.safe_load first"
        return _Loaded(None, [Problem("", text)])
    try:
        content = Path(file).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        return _Loaded(None, [Problem("", "is not UTF-8 text", file)])
    except OSError as error:
        reason = error.strerror or type(error).__name__
        return _Loaded(None, [Problem("", f"cannot be read: {reason}", file)])
    return _from_text(content, file, environ, default_vhost)


def _complete(tree: Section, problems: list[Problem], file: str | None) -> _Loaded:
    if not tree and problems:
        return _Loaded(None, _presentable(problems, file))
    config, root, found = _validated(tree)
    # What was not read cannot be right: one complaint about it is enough.
    unread = {problem.path for problem in problems}
    problems = [*problems, *(problem for problem in found if problem.path not in unread)]
    if config is None:
        return _Loaded(None, _presentable(problems, file))
    return _finished(config, root, problems, file)


def _finished(
    config: BrokerConfig, root: Section | None, problems: list[Problem], file: str | None
) -> _Loaded:
    """Refuse what cannot work; keep and log warnings of likely mistakes."""
    warnings: list[Problem] = []
    for finding in () if problems else findings(config):
        shown, line = locate(root, finding.path)
        found = Problem(shown, finding.message, line=line)
        (problems if finding.fatal else warnings).append(found)
    if problems:
        return _Loaded(None, _presentable(problems, file))
    config.set_warnings(tuple(_presentable(warnings, file)))
    for warning in config.warnings:
        log.warning("%s", warning)
    return _Loaded(config, [])


def _validated(tree: Section) -> tuple[BrokerConfig | None, Section, list[Problem]]:
    problems: list[Problem] = []
    root, implied = expand(tree, problems)
    problems += unknown_names(root)
    problems += _wrong_defaults(tree)
    try:
        config = BrokerConfig.model_validate(root, context=YAML_CONTEXT)
    except ValidationError as error:
        problems += _located(error, BrokerConfig, root)
        return None, root, problems
    if not problems:
        config.set_implied(_implied(implied, problems))
    return config, root, problems


def _implied(
    sections: dict[str, tuple[Section, Section]], problems: list[Problem]
) -> dict[str, tuple[PublicationConfig, SubscriptionConfig]]:
    templates = {}
    for name, (publication, subscription) in sections.items():
        try:
            templates[name] = (
                PublicationConfig.model_validate(publication, context=YAML_CONTEXT),
                SubscriptionConfig.model_validate(subscription, context=YAML_CONTEXT),
            )
        except ValidationError as error:
            model = SubscriptionConfig if error.title == "SubscriptionConfig" else PublicationConfig
            tree = subscription if model is SubscriptionConfig else publication
            problems += _located(error, model, tree)
    return templates


def _located(error: ValidationError, annotation: object, tree: Section) -> list[Problem]:
    problems = []
    for path, message in complaints_of(error, annotation):
        shown, line = locate(tree, path)
        problems.append(Problem(shown, message, line=line))
    return problems


# Each with what its model cannot do without, so that the rest can be checked alone.
_DEFAULTS: dict[str, tuple[type[Settings], dict[str, str]]] = {
    "vhosts": (VhostConfig, {"name": ""}),
    "connection": (ConnectionConfig, {}),
    "exchanges": (ExchangeConfig, {"name": ""}),
    "queues": (QueueConfig, {"name": ""}),
    "bindings": (BindingConfig, {"name": "", "source": "", "destination": ""}),
    "publications": (PublicationConfig, {"name": ""}),
    "subscriptions": (SubscriptionConfig, {"name": "", "queue": ""}),
}


def _wrong_defaults(tree: Section) -> list[Problem]:
    """What is wrong in the ``defaults`` sections, whether anything makes use of them or not."""
    found: list[Problem] = []
    places = [("defaults", tree.get("defaults"))]
    vhosts = tree.get("vhosts")
    if isinstance(vhosts, Section):
        for name, vhost in vhosts.items():
            if isinstance(vhost, Section):
                path = joined(joined("vhosts", name), "defaults")
                places.append((path, vhost.get("defaults")))
    for path, defaults in places:
        if not isinstance(defaults, Section):
            continue
        for kind in _DEFAULTS.keys() & defaults.keys():
            found += _wrong_default(kind, defaults[kind], defaults.spot(kind), path)
    return found


def _wrong_default(kind: str, value: object, spot: Spot, path: str) -> list[Problem]:
    model, needed = _DEFAULTS[kind]
    value = connection_section(value, spot) if kind == "connection" else value
    if not isinstance(value, Section):
        return []
    probe, found = Section(value), []
    if kind == "vhosts":
        for key in (*ENTITIES, *HOISTED, "defaults", "connections", "redeliveries"):
            probe.pop(key, None)
        connection = probe.pop("connection", None)
        if connection is not None:
            where = joined(path, kind)
            found = _wrong_default("connection", connection, value.spot("connection"), where)
    elif kind == "bindings":
        probe, _ = binding_section(probe, "", spot)
    elif kind == "publications" and not {"exchange", "queue"} & stated(probe):
        probe["exchange"] = ""
    elif kind == "connection" and not {"url", "scheme"} & stated(probe):
        # Wherever these settings are used, there will be an address that they fit.
        if "tls" in probe:
            probe["scheme"] = "amqps"
        elif {"user_file", "password_file", "credentials"} & stated(probe):
            probe["scheme"] = "amqp"
    if kind == "connection" and not {"password_file", "credentials"} & stated(probe):
        probe.pop("refresh_credentials", None)  # checked where there is one of them
    # What may be a name has been looked up where it is used.
    for key in ("recovery", "encryption"):
        if isinstance(probe.get(key), str) or (kind, key) == ("subscriptions", "encryption"):
            probe.pop(key, None)
    for key, placeholder in needed.items():
        probe.setdefault(key, placeholder)
    wrapped = Section()
    wrapped.put(kind, probe, spot._replace(path=joined(path, kind)))
    try:
        model.model_validate(probe, context=YAML_CONTEXT)
    except ValidationError as error:
        for keys, message in complaints_of(error, model):
            shown, line = locate(wrapped, (kind, *keys))
            found.append(Problem(shown, message, line=line))
    return found


_USERINFO = re.compile(r"(://[^\s:/@'\"]*):[^\s@'\"]*@")


def _presentable(problems: list[Problem], file: str | None) -> list[Problem]:
    """Each problem once, in the order of the lines, with its file and without a password."""
    shown = dict.fromkeys(
        replace(
            problem,
            path=_USERINFO.sub(r"\1:***@", problem.path),
            message=_USERINFO.sub(r"\1:***@", problem.message),
            file=file,
        )
        for problem in problems
    )
    return sorted(shown, key=lambda problem: problem.line or 0)
