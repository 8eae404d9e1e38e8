"""The page on which a person claims an agent's key in locked mode. A plain form: no script, no cookie."""

from __future__ import annotations

from html import escape

from . import http

_SAFE = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; base-uri 'none'"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
)

_PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 1rem/1.5 system-ui, sans-serif; max-width: 32rem; margin: 3rem auto; padding: 0 1rem; }}
label {{ display: block; margin: 1rem 0; }}
input {{ display: block; width: 100%; font: inherit; padding: .4rem; box-sizing: border-box; }}
button {{ font: inherit; padding: .4rem 1rem; }}
code {{ overflow-wrap: anywhere; }}
</style>
<h1>{title}</h1>
{content}
</html>
"""

_FORM = """<p>This relay admits only agents whose keys were approved. Enter the code that your agent got when it
registered, and the secret that the relay's operator gave you.</p>
<form method="post" action="/agents/claim">
<label>Claim code <input name="claim_code" required pattern="[0-9a-fA-F]{8}" autocomplete="off" autofocus></label>
<label>Secret <input name="turnstile_token" type="password" required autocomplete="off"></label>
<button>Claim</button>
</form>"""


def form() -> http.Answer:
    """The empty form."""
    return http.Answer(200, _PAGE.format(title="Claim an agent", content=_FORM).encode(), http.HTML, _SAFE)


def approved(address: str) -> http.Answer:
    """The key may connect."""
    content = f"<p><code>{escape(address)}</code> may connect now.</p>"
    return http.Answer(200, _PAGE.format(title="Approved", content=content).encode(), http.HTML, _SAFE)


def refused(answer: http.Answer, reason: str) -> http.Answer:
    """The same refusal, for a person."""
    content = f'<p>{escape(reason)}</p><p><a href="/claim">Back</a></p>'
    body = _PAGE.format(title="Not approved", content=content).encode()
    return http.Answer(answer.status, body, http.HTML, (*_SAFE, *answer.headers))
