"""`serve`: what the page is given."""

from pathlib import Path


def test_serve_hands_the_library_and_who_may_ask_to_the_page(search, index, calls):
    assert search("serve", f"--index={index}", "--port=0", "--open").status == 0
    access = "--token-file=t", "--allow-host=nas.local", "--allow-host=b"
    assert search("serve", f"--index={index}", "--host=0.0.0.0", *access).status == 0
    (library, *others), options = calls.served[0]
    assert (library.encoder_name, *others) == ("colours", 0, "127.0.0.1", True)
    assert options == {"token_file": None, "no_token": False, "allow_hosts": []}
    assert calls.served[1][1] == {
        "token_file": Path("t"), "no_token": False, "allow_hosts": ["nas.local", "b"],
    }  # fmt: skip
