"""A plain-text mail, sent through an SMTP server.

    [pools.mail]
    handler = "handlers.mail:send"
    options = { host = "mail.example.org", port = 587, security = "starttls", username = "app",
                password_env = "MAIL_PASSWORD", sender = "app@example.org" }

A job runs at least once, so a mail may be sent twice, if the worker dies after the server has accepted it. Both
copies have the same Message-ID, by which many servers and mail programs drop the second.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import json
import os
import re
import smtplib
import ssl
import unicodedata
from email import message_from_bytes
from email.errors import MessageError
from email.header import decode_header
from email.message import EmailMessage
from email.policy import compat32
from typing import TYPE_CHECKING, Any

from handlers.options import MailOptions, checked_by, read
from supervisor import Fail, Retry

if TYPE_CHECKING:
    from supervisor import Context

# Only ensures that one recipient stays one recipient; the server decides whether it exists.
_LONGEST_FACT = 500  # characters
_MOST_NESTED = 5  # levels of encoded words inside encoded words
_ADDRESS = re.compile(r"[^@,;<>\s]+@[^@,;<>\s]+")


@checked_by(MailOptions)
def send(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    """`{"to": "a@example.org" or […], "subject": "…", "text": "…"}` → the accepted recipients.

    The facts of an alert, under `alert`, are added to the text; without a subject, that is the alert's summary.

    Raises Fail for an invalid payload or option and for permanent rejections by the server (5xx), Retry for temporary
    errors: no connection, a timeout, 4xx. If only some recipients are rejected, the job is done and its result
    names them: another attempt would reach the others twice.
    """
    try:
        options = read(MailOptions, ctx.options)
    except ValueError as error:
        raise Fail(str(error)) from None
    message = _message(payload, ctx, options)
    try:
        refused = _hand_over(message, options)
    except smtplib.SMTPRecipientsRefused as error:
        # Retry while at least one of them may be accepted later.
        code = min(code for code, _ in error.recipients.values())
        raise _verdict(code, _readable(error.recipients)) from None
    except smtplib.SMTPResponseException as error:
        raise _verdict(error.smtp_code, f"{error.smtp_code} {_text(error.smtp_error)}") from None
    except smtplib.SMTPNotSupportedError as error:
        raise Fail(f"{options.host}: {error}") from None
    except ssl.SSLCertVerificationError as error:
        raise Fail(f"{options.host}: its certificate is not accepted: {error.verify_message}") from None
    except (OSError, smtplib.SMTPException) as error:
        raise Retry(f"{options.host}:{options.port}: {error or type(error).__name__}") from error
    recipients = [address for address in _recipients(payload) if address not in refused]
    return {
        "accepted": recipients,
        "refused": {address: f"{code} {_text(reason)}" for address, (code, reason) in refused.items()},
        "message_id": message["Message-ID"],
    }


def _hand_over(message: EmailMessage, options: MailOptions) -> dict[str, tuple[int, bytes]]:
    """Send the message to the server; returns the recipients that it rejected."""
    password = ""
    if options.username:
        password = os.environ.get(options.password_env, "")
        if not password:
            raise Fail(f"no password: no environment variable {options.password_env!r} (password_env)")
        if options.security == "none" and not options.allow_plain_login:
            raise Fail(
                'no password is sent over a connection that is not encrypted: set security = "starttls" or "tls", '
                "or allow_plain_login = true"
            )
    tls = ssl.create_default_context() if options.security != "none" else None
    if options.security == "tls":
        server: smtplib.SMTP = smtplib.SMTP_SSL(options.host, options.port, timeout=options.timeout, context=tls)
    else:
        server = smtplib.SMTP(options.host, options.port, timeout=options.timeout)
    try:
        if options.security == "starttls":
            server.starttls(context=tls)
        if options.username:
            server.login(options.username, password)
        return server.send_message(message)
    finally:
        # Once the server has accepted the mail, an error while closing the session must not send it again.
        with contextlib.suppress(OSError, smtplib.SMTPException):
            server.quit()
        server.close()


def _message(payload: dict[str, Any], ctx: Context, options: MailOptions) -> EmailMessage:
    message = EmailMessage()
    try:
        message["From"] = _header("sender", options.sender or f"job-supervisor@{options.host}")
        message["To"] = _header("to", ", ".join(_recipients(payload, options.max_recipients)))
        message["Subject"] = _header("subject", _string(payload, "subject") or _facts(payload).get("summary", ""))
        digest = hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()[:16]
        message["Message-ID"] = f"<job-{ctx.job_id}-{digest}@{options.host}>"
        message.set_content(_text_of(payload))
        for name, value in message.items():
            _header(name, str(value))  # as the package has parsed it
        _whole(message)
    except (ValueError, IndexError, MessageError) as error:
        # The email package rejects line breaks in a header, and addresses that cannot be parsed.
        raise Fail(f"the payload cannot be sent as a mail: {error}") from None
    return message


def _header(name: str, value: str) -> str:
    """`value`, unless it contains a line break or another control character, also inside encoded words.

    The email package decodes `=?utf-8?q?a=0Ab?=` where it is given as a text, and before the fix of CVE-2024-6923
    wrote the resulting line break: what followed became headers and a body chosen by the author of the payload.
    """
    decoded = value
    for _ in range(_MOST_NESTED):
        if any(unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") for char in decoded):
            raise ValueError(f"{name} contains a line break or another control character")
        again = "".join(
            part.decode(_charset(charset), "replace") if isinstance(part, bytes) else part
            for part, charset in decode_header(decoded)
        )
        if again == decoded:
            return value
        decoded = again
    raise ValueError(f"{name} contains encoded words in encoded words")


def _charset(name: str | None) -> str:
    try:
        return codecs.lookup(name or "latin-1").name
    except LookupError:
        return "latin-1"


def _whole(message: EmailMessage) -> None:
    """Raises ValueError if the message to be sent has headers other than those that were set."""
    sent = message_from_bytes(bytes(message), policy=compat32).keys()
    if sent != message.keys():
        raise ValueError("a header would start another one")


def _recipients(payload: dict[str, Any], most: int | None = None) -> list[str]:
    to = payload.get("to")
    addresses = [to] if isinstance(to, str) else to
    if not isinstance(addresses, list) or not addresses:
        raise Fail('the payload has no recipient: give {"to": "someone@example.org", …}')
    if most is not None and len(addresses) > most:
        raise Fail(f"{len(addresses)} recipients, but max_recipients allows only {most}")
    for address in addresses:
        if not isinstance(address, str) or not _ADDRESS.fullmatch(address):
            raise Fail(f"not a mail address: {address!r}")
    return addresses


def _string(payload: dict[str, Any], key: str) -> str:
    value = payload.get(key, "")
    if not isinstance(value, str):
        raise Fail(f"{key} must be a string")
    return value


def _facts(payload: dict[str, Any]) -> dict[str, str]:
    """Those of an alert, each as one line."""
    facts = payload.get("alert")
    if not isinstance(facts, dict):
        return {}
    return {str(name): " ".join(str(value).split())[:_LONGEST_FACT] for name, value in facts.items()}


def _text_of(payload: dict[str, Any]) -> str:
    """The text, and the facts of the alert that has enqueued the job."""
    facts = "".join(f"{name}: {value}\n" for name, value in _facts(payload).items())
    return "\n\n".join(part for part in (_string(payload, "text"), facts) if part)


def _verdict(code: int, reason: str) -> Exception:
    return Fail(f"refused: {reason}") if code >= 500 else Retry(f"refused for now: {reason}")


def _readable(recipients: dict[str, tuple[int, bytes]]) -> str:
    return "; ".join(f"{address}: {code} {_text(reason)}" for address, (code, reason) in recipients.items())


def _text(reason: bytes | str) -> str:
    return reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
