"""`serve`: what the page is given."""


def test_serve_hands_the_library_to_the_page(search, index, calls):
    assert search("serve", f"--index={index}", "--port=0", "--open").status == 0
    library, port, host, opened = calls.served[0]
    assert (library.encoder_name, port, host, opened) == ("colours", 0, "127.0.0.1", True)
