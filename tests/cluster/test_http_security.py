"""The console of a cluster with TLS: callers have their own permissions, and none of its own."""

from __future__ import annotations

import ssl
from pathlib import Path

from cli_rig import loom_up
from http_rig import Http

from loomlog import connect_sync


def test_callers_have_the_permissions_of_their_tokens(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with loom_up(data, "--nodes", "1", "--sync", "none", "--secure", "--console") as up:
        with connect_sync(up.mr, tls=str(data / "certs/operator-admin.pem")) as operator:
            for name in ("orders", "secrets"):
                operator.create_log(name, replicas=1)
            writer = operator.create_token("billing", ["append:orders"]).text
            viewer = operator.create_token("viewer", ["read:orders", "metrics:*"]).text
            operator.enforce_access(True)
        trust = ssl.create_default_context(cafile=data / "certs/ca.pem")
        anonymous = Http(up.console.rstrip("/"), tls=trust)
        billing = Http(anonymous.url, {"Authorization": f"Bearer {writer}"}, trust)
        viewing = Http(anonymous.url, {"Cookie": f"loom_token={viewer}"}, trust)
        records = "/v1/logs/orders/records"
        body = {"records": [{"value": "x"}]}

        assert anonymous.ask("POST", records, body).error == (401, "Unauthorized")
        refused = anonymous.ask("GET", "/v1/logs")
        assert (refused.status, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert "Sign in with a token" in anonymous.ask("GET", "/").body.decode()

        assert billing.post(records, body)["first"] == 1
        assert billing.ask("GET", records).error == (403, "PermissionDenied")
        secret = "/v1/logs/secrets/records"
        assert billing.ask("POST", secret, body).error == (403, "PermissionDenied")
        assert billing.ask("GET", "/v1/tokens").error == (403, "PermissionDenied")
        assert writer not in billing.ask("GET", records).body.decode()

        assert [each["value"] for each in viewing.get(records)["records"]] == ["x"]
        assert viewing.ask("POST", records, body).error == (403, "PermissionDenied")
        assert "Healthy" in viewing.ask("GET", "/").body.decode()
        page = viewing.ask("GET", "/logs/orders")
        assert (page.status, "Sign out" in page.body.decode()) == (200, True)
        assert viewing.ask("GET", "/logs/secrets").status == 403
        forged = Http(anonymous.url, {"Authorization": f"Bearer {writer[:-4]}AAAA"}, trust)
        assert forged.ask("POST", records, body).status in (401, 403)

        form = {"Content-Type": "application/x-www-form-urlencoded"}
        signed = anonymous.ask("POST", "/sign-in", f"token={viewer}".encode(), form)
        assert signed.status == 303
        cookie = signed.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=strict"))
        session = Http(anonymous.url, {"Cookie": cookie.partition(";")[0]}, trust)
        assert session.get(records)["tail"] == 1
        foreign = form | {"Origin": "https://evil.example"}
        assert anonymous.ask("POST", "/sign-in", b"token=x", foreign).status == 403
