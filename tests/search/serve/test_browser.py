"""The page in a real browser: Debian's chromium, steered by Playwright.

HLFORMER_SCREENSHOTS names a folder for pictures of the page.
"""

import os
import pathlib
import re

import archive
import page_browser
import page_library
import pytest
import videos
from page_browser import is_at, is_playing, names, search, shown_colour, time_of, unfold
from PIL import Image
from playwright.sync_api import expect

from hlformer_jax import video
from hlformer_jax.text import printable

pytestmark = page_browser.needs_chromium


@pytest.mark.slow  # it takes seconds
def test_enter_plays_the_first_result_from_its_moment(page):
    page.keyboard.type("a red scene")  # the field has the focus from the start
    page.keyboard.press("Enter")
    expect(page.locator("#name")).to_have_text("Küche & <b>Herd.mp4")
    is_playing(page)
    is_at(page, 6)
    assert names(page) == ["Küche & <b>Herd.mp4", "garden.mp4", "boat ride.mp4"]
    assert shown_colour(page) == "red"
    assert page.locator("main b").count() == 0  # a name is text, not HTML


@pytest.mark.slow  # it takes seconds
def test_typing_sends_fewer_queries_than_letters(page, library):
    queries_before = len(library.queries)
    page.locator("#q").press_sequentially("a blue scene", delay=20)
    expect(page.locator("#status")).to_have_text("3 videos for “a blue scene”")
    assert names(page)[0] == "boat ride.mp4"
    assert 1 <= len(library.queries) - queries_before <= 4
    page.wait_for_function("() => document.querySelector('.card img').naturalWidth == 320")
    is_at(page, 8)
    assert page.evaluate("document.getElementById('player').paused")


@pytest.mark.slow  # it takes seconds
def test_outdated_answer_is_not_shown(page):
    # The late answer arrives after the newer one, as if requests could not be aborted.
    page.evaluate(
        """() => { const real = fetch; window.late = 0;
            window.fetch = async (url, options) => {
                const answer = await real(url, {});
                if (!String(url).includes('violet')) return answer;
                await new Promise((go) => { window.answer = go; });
                window.late += 1;
                return answer; }; }"""
    )
    page.locator("#q").fill("violet")
    page.wait_for_function("() => window.answer")
    search(page, "blue")
    page.evaluate("window.answer()")
    page.wait_for_function("() => window.late == 1")
    page.wait_for_timeout(100)
    assert page.locator("#status").inner_text() == "3 videos for “blue”"
    assert names(page)[0] == "boat ride.mp4"


@pytest.mark.slow  # it takes seconds
def test_strip_seeks_by_click_and_by_keys(page):
    search(page, "red")
    strip = page.locator("#strip")
    box = strip.bounding_box()
    strip.click(position={"x": box["width"] * 13.25 / 14, "y": 20})
    is_at(page, 13.25, 0.8)
    assert shown_colour(page) == "violet"
    page.keyboard.press("Escape")
    strip.focus()
    page.keyboard.press("Home")
    is_at(page, 0, 0)
    assert shown_colour(page) == "yellow"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    is_at(page, 2, 0.1)
    expect(strip).to_have_attribute("aria-valuetext", "0:02 of 0:14")
    page.keyboard.press("End")
    is_at(page, 13.9, 0.1)
    page.evaluate("shown.duration = 10800")
    page.keyboard.press("ArrowLeft")  # a second of a long video too
    is_at(page, 12.9, 0.1)


@pytest.mark.slow
def test_forced_colours_mark_the_chosen_result(page):
    page.emulate_media(forced_colors="active")
    search(page, "blue")

    def styles(selector, name):
        script = "(found, name) => found.map((element) => getComputedStyle(element)[name])"
        return page.locator(selector).evaluate_all(script, name)

    first, *others = styles("#results .card", "outlineStyle")
    assert first == "solid" and set(others) == {"none"}
    chosen, other = styles("#chips .chip", "backgroundColor")
    assert chosen != other


def test_strip_is_drawn_with_its_moments(page):
    search(page, "red")
    drawn = page.evaluate(
        """() => new Promise((done) => requestAnimationFrame(() => {
            const c = document.getElementById('strip'), w = c.width, h = c.height;
            const at = (time) => String([...c.getContext('2d')
                .getImageData(time / 14 * w, h - 4, 1, 1).data]);
            done([at(7.5), at(8.5), at(4.5)]); }))"""
    )
    assert drawn[0] == drawn[1] == "15,118,110,255" and drawn[2] != drawn[0]


@pytest.mark.slow
def test_every_moment_is_a_chip_that_plays_it(page):
    search(page, "blue")
    chips = page.locator("#chips .chip")
    assert chips.all_inner_texts() == ["0:08–0:11", "0:02–0:04"]
    chips.nth(1).click()
    is_playing(page)
    is_at(page, 2)
    assert shown_colour(page) == "blue"
    expect(chips.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(chips.nth(0)).to_have_attribute("aria-pressed", "false")
    # The chips of another result play that result.
    page.locator("#results li").nth(2).locator(".chip").first.click()
    assert page.locator("#name").inner_text() == names(page)[2]


@pytest.mark.slow
def test_results_and_player_search_more_like_this(opened, page):
    search(page, "green")
    page.get_by_role("button", name="More like garden.mp4 at 0:0").click()
    expect(page.locator("#status")).to_contain_text("2 videos for like garden.mp4 at 0:0")
    assert "garden.mp4" not in names(page) and page.locator("#q").input_value() == ""
    page.locator("#q").fill("violet")  # words beside the picture
    expect(page.locator("#status")).to_contain_text("and “violet”")
    restored = opened(page.url)
    expect(restored.locator("#results .open")).to_have_count(2)
    page.locator("#unlike").click()
    expect(page.locator("#status")).to_have_text("3 videos for “violet”")
    expect(page.locator("#unlike")).to_be_hidden()
    page.get_by_role("button", name="More like this", exact=True).last.click()
    expect(page.locator("#results .open")).to_have_count(2)


@pytest.mark.slow  # it takes seconds
def test_transcript_is_shown_and_plays(page):
    search(page, "red captain")
    page.get_by_text("0:04 “the captain's ship”").click()
    is_playing(page)
    is_at(page, 4)
    unfold(page)
    with page.expect_request("**/cut/*") as cut:  # of the passage, not of a visual moment
        page.get_by_role("button", name="Cut this moment").click()
    assert "start=4&end=6&" in cut.value.url
    signals = page.get_by_role("combobox", name="Search in")
    assert signals.locator("option").all_inner_texts()[0] == "visual, transcript"
    signals.select_option("transcript")
    expect(page.get_by_role("button", name="Clear filters")).to_be_visible()


@pytest.mark.slow  # it takes seconds
def test_transcript_follows_the_video_and_seeks(page):
    search(page, "green")
    page.get_by_text("Transcript", exact=True).click()
    page.get_by_role("button", name="0:01 look").click()
    is_playing(page)
    is_at(page, 1)
    expect(page.locator("#transcript [aria-current]")).to_have_text("0:01 look")
    page.get_by_role("button", name="0:04 the captain's ship").click()
    expect(page.locator("#transcript [aria-current]")).to_contain_text("ship")
    captions = page.evaluate("""() => {
        const [track] = player.textTracks;
        track.mode = "showing";  // as the browser's control does
        return [track.kind, ...[...track.cues].map((cue) => cue.text)];
    }""")
    assert captions == ["captions", "look", "the captain's ship"]
    page.wait_for_function("() => player.textTracks[0].activeCues[0]?.text.includes('ship')")
    page.get_by_text("Transcript", exact=True).click()
    page.evaluate("seek(9)")
    page.evaluate("document.querySelector('#transcript ol').style.maxHeight = '20px'")
    page.get_by_text("Transcript", exact=True).click()  # scrolls to the last line before 0:09
    page.wait_for_function("() => document.querySelector('#transcript ol').scrollTop > 10")
    search(page, "yellow")  # a video without a transcript
    expect(page.get_by_text("Transcript", exact=True)).to_be_hidden()
    assert page.evaluate("() => player.textTracks[0].cues.length") == 0


@pytest.mark.slow  # it takes seconds
def test_picture_query_lasts_until_its_filter_is_removed(page, tmp_path):
    path = tmp_path / "lilac.png"
    Image.new("RGB", (8, 8), page_library.COLOURS["violet"]).save(path)
    page.locator("#file").set_input_files(path)
    expect(page.locator("#status")).to_have_text("3 videos for like lilac.png")
    assert names(page)[0] == "Küche & <b>Herd.mp4"
    page.locator("#q").fill("green")
    expect(page.locator("#status")).to_have_text("3 videos for like lilac.png and “green”")
    page.reload()
    expect(page.locator("#toast")).to_contain_text("lilac.png is not kept")
    expect(page.locator("#status")).to_have_text("3 videos for “green”")
    page.locator("#file").set_input_files(path)
    page.get_by_role("button", name="Remove the filter like lilac.png").click()
    expect(page.locator("#status")).to_have_text("3 videos for “green”")
    expect(page.locator("#q")).to_be_focused()  # the chip is gone
    page.evaluate("history.replaceState({ picture: 'lilac.png 8 1' }, '')")  # by a former version
    page.reload()
    expect(page.locator("#status")).to_have_text("3 videos for “green”")


@pytest.mark.slow
def test_event_order_exclusion_and_more_results_are_shown(page, library):
    page.evaluate("PAGE_SIZE = 2")
    search(page, "red")
    expect(page.locator("#results .open")).to_have_count(2)
    unfold(page)
    page.get_by_label("Followed by", exact=True).fill("blue")
    page.get_by_label("Exclude", exact=True).fill("green")
    expect(page.locator("#status")).to_have_text("2 videos for “red”, then “blue”, but not “green”")
    assert library.queries[-1].then == ("blue",) and library.queries[-1].without == ("green",)
    page.get_by_role("button", name="More results").click()
    expect(page.locator("#results .open")).to_have_count(3)
    expect(page.get_by_role("button", name="More results")).to_be_hidden()
    page.locator("#results .chip").nth(-2).click()
    expect(page.locator("#name")).to_have_text(names(page)[2])
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#status")).to_have_text("2 videos for “red”")


@pytest.mark.slow  # it takes seconds
def test_filters_by_folder_and_date_narrow_the_results(page):
    search(page, "grey")
    unfold(page)
    page.locator("#folder").select_option("trips/lake")
    expect(page.locator("#results .open")).to_have_text(["boat ride.mp4"])
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#results .open")).to_have_count(3)
    page.get_by_label("From date", exact=True).fill("2026-06-15")
    expect(page.locator("#results .open")).to_have_count(2)
    page.get_by_label("To date", exact=True).fill("2026-06-15")
    expect(page.locator("#results .open")).to_have_text(["boat ride.mp4"])
    page.get_by_role("button", name="Filters (2)").click()
    expect(page.locator("#filters")).to_be_hidden()
    chips = page.get_by_role("group", name="Filters in use").get_by_role("button")
    expect(chips).to_have_text(["From date: 2026-06-15 ✕", "To date: 2026-06-15 ✕"])
    page.get_by_role("button", name="Remove the filter To date").click()
    expect(page.locator("#results .open")).to_have_count(2)
    expect(chips).to_be_focused()  # the next one
    unfold(page)
    page.get_by_label("From date", exact=True).fill("2027-01-01")
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    expect(page.locator("#note-text")).to_contain_text("filters")
    expect(page.locator("#tips li").first).to_contain_text("Remove a filter")


@pytest.mark.slow  # it takes seconds
def test_newest_videos_of_the_start_page_follow_the_filters(page, url):
    unfold(page)
    page.locator("#folder").select_option("trips")
    expect(page.locator("#results .open")).to_have_text(["Küche & <b>Herd.mp4", "boat ride.mp4"])
    page.get_by_label("Exclude", exact=True).fill("green")
    expect(page.locator("#status")).to_contain_text("these apply to searches only: Exclude")
    page.get_by_label("From date", exact=True).fill("2027-01-01")
    expect(page.locator("#note-text")).to_have_text("No indexed video passes these filters.")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#results .open")).to_have_count(3)
    page.expected.append("Failed to load resource")
    page.goto(f"{url}/#tag=sea")
    expect(page.locator("#note-text")).to_contain_text("no video of the index has the tag 'sea'")


def test_long_filter_is_truncated_and_fits_a_phone(opened, url):
    page = opened(f"{url}/#q=red&not={'a+very+long+sky+' * 9}", 320, 800)
    chip = page.get_by_role("group", name="Filters in use").get_by_role("button")
    expect(chip).to_be_visible()
    # In one call, because the answer to the query draws the chip anew.
    width = page.wait_for_function("() => document.querySelector('#used button')?.offsetWidth")
    assert width.json_value() <= 320 - 28
    assert page.evaluate("document.documentElement.scrollWidth") == 320


@pytest.mark.slow  # it takes seconds
def test_star_marks_a_favourite_for_filtering(page):
    search(page, "grey")
    star = page.get_by_role("button", name="Favourite garden.mp4")
    expect(star).to_have_attribute("aria-pressed", "false")
    star.click()
    expect(star).to_have_attribute("aria-pressed", "true")
    unfold(page)
    page.get_by_role("combobox", name="Tag").select_option("favourite")
    expect(page.locator("#results .open")).to_have_text(["garden.mp4"])
    star.click()
    expect(star).to_have_text("☆")
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#results .open")).to_have_count(3)


@pytest.mark.slow
def test_page_is_used_by_keyboard_alone(page):
    search(page, "red")
    first, second = (page.locator("#results .open").nth(i) for i in (0, 1))
    page.keyboard.press("ArrowDown")
    expect(first).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(second).to_be_focused()
    expect(page.locator("#name")).to_have_text("garden.mp4")
    expect(second).to_have_attribute("aria-current", "true")
    page.keyboard.press("Enter")
    is_playing(page)
    is_at(page, 8)
    page.keyboard.press("Escape")
    expect(page.locator("#q")).to_be_focused()
    assert page.evaluate("document.getElementById('player').paused")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#q")).to_be_focused()
    unfold(page)
    page.locator("#folder").focus()
    for key in "/?":  # in a list of folders they are letters
        page.keyboard.press(key)
    expect(page.locator("#q")).not_to_be_focused()
    expect(page.get_by_role("dialog", name="Help")).to_be_hidden()
    first.focus()
    page.keyboard.press("/")
    expect(page.locator("#q")).to_be_focused()
    page.keyboard.type("blue")  # the former query is selected
    expect(page.locator("#status")).to_contain_text("“blue”")
    first.focus()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Help")).to_contain_text("Esc")
    page.keyboard.press("Escape")
    expect(first).to_be_focused()


@pytest.mark.slow
def test_focus_stays_where_the_keyboard_can_continue(page):
    page.expected.append("Failed to load resource")
    search(page, "blue")
    second = page.locator("#chips .chip").nth(1)
    second.press("Enter")
    expect(second).to_be_focused()
    cut = page.locator("#cut")
    with page.expect_download():
        cut.press("Enter")
        expect(cut).to_be_focused()
    expect(cut).to_have_text("Cut this moment")
    expect(cut).to_be_focused()
    # The results of another search have a new list of buttons.
    page.get_by_role("button", name="More like garden.mp4").press("Enter")
    expect(page.locator("#status")).to_contain_text("like garden.mp4")
    expect(page.locator("#results .open").first).to_be_focused()
    page.go_back()
    expect(page.locator("#status")).to_have_text("3 videos for “blue”")
    expect(page.locator("#results .open").first).to_be_focused()
    page.route("**/api/query*", lambda route: route.abort())
    page.locator("#q").fill("red")
    again = page.get_by_role("button", name="Try again")
    again.focus()
    page.unroute("**/api/query*")
    again.press("Enter")
    expect(page.locator("#results .open")).to_have_count(3)
    expect(page.locator("#q")).to_be_focused()
    page.evaluate("PAGE_SIZE = 2")
    search(page, "grey")
    page.route("**/api/query*", lambda route: route.abort())
    more = page.get_by_role("button", name="More results")
    more.press("Enter")
    expect(page.locator("#toast")).to_contain_text("does not answer")
    expect(more).to_be_focused()
    page.unroute("**/api/query*")
    more.press("Enter")
    expect(page.locator("#results .open").nth(2)).to_be_focused()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(360, 640), (1280, 480)])
def test_player_is_visible_when_it_plays(opened, url, width, height):
    page = opened(url, width, height)
    search(page, "red")
    page.locator("#results .open").last.click()
    is_playing(page)
    box = page.locator("#player").bounding_box()
    assert 0 <= box["y"] < box["y"] + box["height"] <= height
    page.evaluate("document.getElementById('results').style.minHeight = '3000px'")
    page.locator("#stage").hover()
    page.mouse.wheel(0, 400)  # to the buttons below the video
    page.wait_for_function(
        "() => document.getElementById('alike').getBoundingClientRect().bottom <= innerHeight"
    )


@pytest.mark.slow
def test_link_restores_query_filters_and_time(opened, url, page):
    search(page, "red")
    unfold(page)
    page.locator("#folder").select_option("trips")
    page.get_by_label("From date", exact=True).fill("2026-01-01")
    expect(page.locator("#results .open")).to_have_text(["Küche & <b>Herd.mp4", "boat ride.mp4"])
    page.locator("#results .open").nth(1).click()
    page.locator("#strip").focus()
    page.keyboard.press("Home")
    page.keyboard.press("PageUp")
    is_at(page, 1.2, 8)
    page.keyboard.press("Escape")
    time = time_of(page)
    page.get_by_role("button", name="Copy link").click()
    expect(page.locator("#toast")).to_contain_text("link")

    copy = opened(page.url)
    expect(copy.locator("#name")).to_have_text("boat ride.mp4")
    assert copy.locator("#q").input_value() == "red"
    assert copy.locator("#folder").input_value() == "trips"
    expect(copy.get_by_role("button", name="Remove the filter Folder: trips")).to_be_visible()
    assert copy.locator("#since").input_value() == "2026-01-01"
    is_at(copy, time - 0.1, 0.2)
    # The address of a search alone is a link too.
    copy.goto(f"{url}/#q=blue&until=2026-07-01")
    expect(copy.locator("#status")).to_have_text("2 videos for “blue”")


def test_link_with_an_invalid_value_is_not_a_link_without_it(opened, url, library):
    page = opened(f"{url}/#q=red&since=2026-13-45")
    page.expected.append("400")
    expect(page.locator("#note")).to_contain_text("2026-13-45")
    expect(page.locator("#used")).to_contain_text("2026-13-45")
    page.locator("#used button").click()  # the field shows dates again
    expect(page.locator("#status")).to_contain_text("videos for “red”")
    assert page.locator("#since").get_attribute("type") == "date"
    for name, value in (("until", "x"), ("longer", "x"), ("signals", "x"), ("like", "x")):
        page.goto(f"{url}/#q=red&{name}={value}")
        expect(page.locator("#note-title")).to_have_text("The search failed")
    page.goto(f"{url}/#q=red&until=2099")  # a year, as in the API
    expect(page.locator("#status")).to_contain_text("videos for “red”")
    page.goto(f"{url}/#video={library.id('garden')}&t=x")
    expect(page.locator("#toast")).to_contain_text("time x is not a number")


@pytest.mark.slow  # it takes seconds
def test_back_and_forward_restore_searches_with_their_filters(page, tmp_path):
    status = page.locator("#status")
    page.locator("#q").press_sequentially("red", delay=20)  # one entry for all letters
    page.keyboard.press("Enter")
    expect(status).to_have_text("3 videos for “red”")
    search(page, "blue")
    unfold(page)
    page.locator("#folder").select_option("trips")
    expect(page.locator("#results .open")).to_have_count(2)
    page.get_by_role("button", name="Copy link").click()  # no entry of its own
    path = tmp_path / "lilac.png"
    Image.new("RGB", (8, 8), page_library.COLOURS["violet"]).save(path)
    page.locator("#file").set_input_files(path)
    expect(status).to_contain_text("like lilac.png and “blue”")
    page.locator("#results .open").nth(1).click()

    page.go_back()
    expect(status).to_have_text("2 videos for “blue”")
    expect(page.locator("#unlike")).to_be_hidden()
    page.go_back()
    expect(status).to_have_text("3 videos for “blue”")
    assert page.locator("#folder").input_value() == ""
    page.go_back()
    expect(status).to_have_text("3 videos for “red”")
    assert page.locator("#q").input_value() == "red"
    page.go_back()
    expect(status).to_contain_text("Newest videos")
    for _ in range(3):
        page.go_forward()
    expect(status).to_have_text("2 videos for “blue”")
    assert page.locator("#folder").input_value() == "trips"
    page.go_forward()
    expect(status).to_contain_text("like lilac.png and “blue”")


@pytest.mark.slow  # it takes seconds
def test_pause_in_typing_adds_a_history_entry(page):
    page.evaluate("Date.now = () => window.testTime ?? 0")
    for clock, sentence in ((0, "red"), (1500, "red boat"), (9000, "blue")):
        page.evaluate("(time) => { window.testTime = time; }", clock)
        search(page, sentence)
    page.go_back()
    expect(page.locator("#status")).to_have_text("3 videos for “red boat”")
    page.go_back()
    expect(page.locator("#status")).to_contain_text("Newest videos")


@pytest.mark.slow  # it takes seconds
def test_token_leaves_the_address_of_the_page(opened, library):
    with page_library.running(library, token="t" * 32) as url:
        page = opened(f"{url}/?token={'t' * 32}#q=red")
        expect(page.locator("#results .open")).to_have_count(3)
        assert page.url == f"{url}/#q=red"
        is_at(page, 6)
        page.reload()
        expect(page.locator("#results .open")).to_have_count(3)
        page.context.close()  # while the server still answers what the page is loading


@pytest.mark.slow
def test_result_shows_its_date_and_the_source_of_the_date(page, library, replaced):
    replaced("garden", recorded=library.entry(library.id("garden")).modified)
    search(page, "green")
    expect(page.locator("#place")).to_contain_text("recorded 2026-03-01")
    page.locator("#results .open").nth(1).click()
    expect(page.locator("#place")).to_contain_text("file of 2026-")
    page.evaluate("hits[0].copies = ['trips/garden.mp4']; choose(0)")
    expect(page.locator("#place")).to_contain_text("copy: trips/garden.mp4")


@pytest.mark.slow
def test_cut_is_downloaded_with_its_margin(page):
    search(page, "red")
    page.get_by_label("Margin before").select_option("5")
    with page.expect_download() as download:
        page.get_by_role("button", name="Cut this moment").click()
    assert download.value.suggested_filename == "Küche & _b_Herd 0m06s-0m09s.mp4"
    assert video.probe(download.value.path()).duration == pytest.approx(13, abs=0.05)
    expect(page.locator("#toast")).to_contain_text("downloads")


@pytest.mark.slow
def test_slow_search_is_shown_as_busy(page, library):
    library.gate.clear()
    try:
        page.locator("#q").fill("red")
        expect(page.locator(".skeleton").first).to_be_visible()
        expect(page.locator("#found")).to_have_attribute("aria-busy", "true")
    finally:
        library.gate.set()
    expect(page.locator("#results .open")).to_have_count(3)
    expect(page.locator("#found")).to_have_attribute("aria-busy", "false")


def test_failed_request_is_shown_and_can_be_repeated(page):
    page.expected.append("Failed to load resource")
    page.route("**/api/query*", lambda route: route.abort())
    page.locator("#q").fill("red")
    expect(page.get_by_role("heading", name="The search failed")).to_be_visible()
    expect(page.locator("#note-text")).to_contain_text("does not answer")
    page.unroute("**/api/query*")
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("#results .open")).to_have_count(3)
    page.locator("#q").fill("refuse")
    expect(page.locator("#note-text")).to_have_text("the text is refused")


@pytest.mark.slow
def test_deleted_or_unplayable_video_is_reported(page, replaced, tmp_path):
    path = tmp_path / "garden.mp4"
    path.write_bytes(b"no film")
    replaced("garden", path)
    path.unlink()
    page.expected.append("Failed to load resource")
    search(page, "red")
    page.locator("#results .open").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("garden.mp4 was deleted")
    path.write_bytes(b"no film")
    replaced("garden", path)
    page.locator("#results .open").nth(0).click()
    expect(page.locator("#trouble")).to_be_hidden()
    page.locator("#results .open").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("cannot play")


HOSTILE = "\x1b[2J\n\t\x85\u202e\u2066\u2028"
"""Characters of a file name that would change the rest of a line."""


@pytest.mark.slow
def test_names_are_printable_in_attributes_and_texts(page, library, replaced):
    renamed = f"{HOSTILE}/gar{HOSTILE}den.mp4"
    library.colours[renamed] = library.colours["garden.mp4"]
    replaced("garden", video=renamed, folder=HOSTILE)
    page.reload()
    search(page, "green")
    name = printable(f"gar{HOSTILE}den.mp4")
    assert page.evaluate("text => printable(text)", f"Küche é{HOSTILE}") == printable(
        f"Küche é{HOSTILE}"
    )
    first = page.locator("#results > li").first
    expect(first.locator(".open")).to_have_text(name)
    expect(page.locator("#name")).to_have_text(name)
    texts = page.evaluate("""() => [...document.querySelectorAll("*")].flatMap((element) =>
        ["title", "aria-label", "alt"].map((name) => element.getAttribute(name) ?? "")
            .concat(element.children.length ? [] : [element.textContent]))""")
    assert printable(renamed) in texts
    assert sum(name in text for text in texts) >= 6  # the button, its moments, the player …
    assert not [text for text in texts if set(text) & set(HOSTILE) - set("\n[2J")]


@pytest.mark.slow  # it takes seconds
@pytest.mark.parametrize(("suffix", "sound"), [(".avi", None), (".mp4", (0, 10))])
def test_unplayable_format_is_played_from_a_preview(page, replaced, tmp_path, suffix, sound):
    """Chromium reports no error for a file with sound: it plays the sound alone."""
    path = tmp_path / f"garden{suffix}"
    replaced("garden", videos.write(path, "mpeg4", frames=120, sound=sound))
    search(page, "red")
    page.locator("#results .open").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("encoded anew")
    page.wait_for_function("() => player.readyState > 1 && preview.start === 3")
    assert page.evaluate("position()") == pytest.approx(8, abs=1)
    is_playing(page)


@pytest.mark.slow  # it takes seconds
def test_preview_that_the_browser_cannot_decode_is_reported(page, replaced, tmp_path):
    replaced("garden", videos.write(tmp_path / "garden.mp4", "mpeg4", frames=120, sound=(0, 10)))
    no_pictures = "Object.defineProperty(HTMLVideoElement.prototype, 'videoWidth', {get: () => 0})"
    page.evaluate(no_pictures)
    search(page, "red")
    page.locator("#results .open").nth(1).click()
    expect(page.get_by_role("alert")).to_contain_text("plays neither this video")


# Changes of the index


@pytest.fixture
def managed(changing, opened):
    """A page that may change the index of `changing`, whose films have no pictures."""
    with page_library.running(changing, manage=None) as url:

        def open_page(**options):
            page = opened(url, **options)
            page.expected.append("Failed to load resource")
            return page

        yield open_page


@pytest.mark.slow  # it takes seconds
def test_folder_is_added_stopped_and_removed(managed, changing, films, tmp_path):
    for name, colour in (("d", "red"), ("e", "blue")):
        archive.film(tmp_path / "photos" / f"{name}.film", [colour] * 40)
    page = managed()
    page.get_by_role("button", name="Manage").click()
    panel = page.get_by_role("dialog", name="The index")
    expect(panel.get_by_role("list", name="Folders")).to_contain_text(f"{films} 3 videos")
    changing.encoder.gate.clear()
    panel.get_by_label("Add a folder").fill(str(tmp_path / "photos"))
    page.keyboard.press("Enter")
    expect(panel.locator("#job-line")).to_have_text("Adding: 0 of 2 videos")
    expect(panel.get_by_role("button", name="Index again")).to_be_disabled()
    page.reload()  # the job is the server's
    expect(page.get_by_role("button", name="Manage · 0/2")).to_be_visible()
    page.get_by_role("button", name="Manage").click()
    expect(panel.get_by_role("progressbar")).to_have_attribute("max", "2")
    panel.get_by_role("button", name="Stop", exact=True).click()
    expect(panel.locator("#job-line")).to_have_text("Stopping…")
    changing.encoder.gate.set()
    expect(panel.locator("#job-line")).to_contain_text("Stopped. The indexed videos are kept")
    panel.get_by_role("button", name="Index again").click()
    expect(panel.locator("#job-line")).to_contain_text("indexed")
    expect(panel.get_by_role("list", name="Folders")).to_contain_text("photos 2 videos")
    expect(page.locator("#job-status")).to_contain_text("the index: ")  # for screen readers
    panel.get_by_role("button", name="Remove").click()
    expect(page.get_by_role("dialog", name="from the index?")).to_contain_text("Its 2 videos leave")
    page.keyboard.press("Enter")  # the focus is on the button that cancels
    expect(panel.get_by_role("list", name="Folders")).to_contain_text("photos")
    panel.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog", name="from the index?").get_by_text("Remove", exact=True).click()
    expect(panel.locator("#job-line")).to_have_text("removed 2 of 5 videos")
    expect(panel.get_by_role("list", name="Folders")).not_to_contain_text("photos")
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    expect(page.locator("#facts")).to_contain_text("3 videos")


@pytest.mark.slow  # it takes seconds
def test_video_stays_open_when_a_job_ends(managed, films):
    page = managed()
    search(page, "red")
    page.locator("#results .open").nth(1).click()
    name = page.locator("#results .open").nth(1).inner_text()
    page.locator("#strip").focus()
    page.keyboard.press("End")
    archive.film(films / "new.film", ["red"] * 40)
    page.get_by_role("button", name="Manage").click()
    page.get_by_role("button", name="Index again").click()
    expect(page.locator("#results .open")).to_have_count(4)
    expect(page.locator("#name")).to_have_text(name)
    assert page.evaluate("position() > shown.duration - 1")


# test_jobs.py tests that a second job is refused.
@pytest.mark.slow
def test_job_of_another_page_is_shown(managed, changing, films):
    archive.film(films / "new.film", ["red"] * 40)
    changing.encoder.gate.clear()
    first, second = managed(), managed()
    for page in (first, second):
        page.get_by_role("button", name="Manage").click()
        expect(page.get_by_role("button", name="Index again")).to_be_enabled()
    first.get_by_role("button", name="Index again").click()
    expect(first.locator("#job-line")).to_have_text("Indexing: 0 of 1 video")
    second.get_by_role("button", name="Index again").click()
    expect(second.get_by_role("alert")).to_contain_text("Wait until that ends, or stop it")
    expect(second.locator("#job-line")).to_have_text("Indexing: 0 of 1 video")
    changing.encoder.gate.set()
    for page in (first, second):
        expect(page.locator("#job-line")).to_contain_text("1 indexed")
        expect(page.locator("#facts")).to_contain_text("4 videos")


@pytest.mark.slow  # it takes seconds
def test_failure_is_retried_and_a_video_removed(managed, films):
    (films / "bad.film").write_bytes(b"broken")
    page = managed()
    page.get_by_role("button", name="Manage").click()
    page.get_by_role("button", name="Index again").click()
    expect(page.locator("#job-line")).to_have_text("the index: 3 unchanged, 1 failed")
    page.get_by_text("1 file could not be indexed").last.click()
    archive.film(films / "bad.film", ["red"] * 6)
    page.get_by_role("button", name="Try bad.film again").click()
    expect(page.locator("#job-line")).to_have_text("the index: 1 indexed")
    expect(page.locator("#broken")).to_be_hidden()
    page.get_by_label("Add a folder").fill("films")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Give an absolute path")
    page.get_by_role("button", name="Close").click()
    search(page, "red")
    expect(page.locator("#results .open")).to_have_count(4)
    page.locator("#results .open").filter(has_text="bad.film").focus()
    page.get_by_role("button", name="Remove…").click()
    page.get_by_role("dialog", name="Remove bad.film").get_by_text("Remove", exact=True).click()
    expect(page.locator("#manage")).to_be_focused()
    expect(page.locator("#results .open")).to_have_count(3)
    assert (films / "bad.film").exists()


@pytest.mark.slow  # it takes seconds
def test_page_without_rights_has_no_buttons_of_changes(page):
    search(page, "red")
    expect(page.get_by_role("button", name="Manage")).to_be_hidden()
    expect(page.get_by_role("button", name="Remove…")).to_be_hidden()


# Appearance and accessibility


WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS = pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (380, "dark")])


def is_accessible(page, name):
    """Check a page with axe-core, and that its fields have names and nothing is cut off.

    Saves a picture if HLFORMER_SCREENSHOTS names a folder. No rule of axe waits for the player.
    """
    if folder := os.environ.get("HLFORMER_SCREENSHOTS"):
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        width = page.viewport_size["width"]
        page.screenshot(path=f"{folder}/{name}_{width}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    fields = [node for node in nodes if not node.get("ignored") and is_focusable(node)]
    unnamed = [field for field in fields if not field.get("name", {}).get("value", "").strip()]
    assert fields and unnamed == []
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="extra test").Axe()
    result = axe.run(page, options={"runOnly": WCAG, "preload": False}).response
    assert len(result["passes"]) > 10
    wrong = [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in result["violations"]
        for node in rule["nodes"]
    ]
    assert wrong == []


def lowest_edge_contrast(page):
    """Return the lowest contrast of a field's edge with its surroundings (WCAG 1.4.11)."""
    colours = page.evaluate(
        """() => [...document.querySelectorAll('input:not([type=hidden], [hidden]), select')]
            .map((field) => {
                const style = getComputedStyle(field), around = field.closest('dialog, #stage');
                return [style.borderTopColor, style.backgroundColor,
                    getComputedStyle(around ?? document.body).backgroundColor]; })"""
    )
    assert len(colours) > 8
    return min(contrast(edge, side) for edge, *sides in colours for side in sides)


def contrast(*colours):
    """Return the contrast of two colours by the formula of WCAG 2.2."""
    luminances = []
    for colour in colours:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
        luminances.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(luminances) + 0.05) / (min(luminances) + 0.05)


@pytest.mark.slow  # it takes seconds
@LOOKS
def test_axe_passes_for_search_player_and_transcript(opened, url, monkeypatch, width, scheme):
    page = opened(url, width, 860, scheme)
    expect(page.locator("#results .open")).to_have_count(3)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 384) == (scheme == "light")
    is_accessible(page, "start")
    page.get_by_role("button", name="Help").click()
    is_accessible(page, "help")
    expect(page.get_by_role("dialog", name="Help")).to_contain_text("encoder is colours-by-name")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Got it").click()  # the hints of the first use
    page.reload()
    expect(page.locator("#results .open")).to_have_count(3)
    expect(page.get_by_role("button", name="Got it")).to_be_hidden()
    expect(page.get_by_role("note")).to_be_hidden()
    monkeypatch.setattr(page_library.Library, "has_demo_encoder", True)
    page.reload()
    expect(page.get_by_role("note")).to_contain_text("Scores of other sentences mean nothing")
    unfold(page)
    page.get_by_role("combobox", name="Folder").select_option("trips/lake")
    is_accessible(page, "filters")
    page.get_by_role("button", name="Clear filters").click()
    assert lowest_edge_contrast(page) >= 3
    search(page, "green captain")
    page.get_by_text("Transcript", exact=True).click()
    page.get_by_role("button", name="0:04 the captain's ship").click()
    expect(page.locator("#transcript [aria-current]")).to_contain_text("ship")
    page.evaluate("player.pause()")
    is_accessible(page, "results")
    page.locator("#q").fill("nothing")
    expect(page.get_by_role("heading", name="Nothing found")).to_be_visible()
    is_accessible(page, "nothing")


@pytest.mark.slow  # it takes seconds
@LOOKS
def test_axe_passes_for_changes_of_the_index(managed, changing, films, width, scheme):
    (films / "bad.film").write_bytes(b"broken")
    page = managed(width=width, scheme=scheme)
    page.get_by_role("button", name="Manage").click()
    page.get_by_role("button", name="Index again").click()
    expect(page.locator("#job-line")).to_have_text("the index: 3 unchanged, 1 failed")
    archive.film(films / "new.film", ["red"] * 40)
    changing.encoder.gate.clear()
    page.get_by_role("button", name="Index again").click()
    expect(page.locator("#job-line")).to_have_text("Indexing: 0 of 1 video")
    page.get_by_text("1 file could not be indexed").last.click()
    is_accessible(page, "manage")
    changing.encoder.gate.set()
    expect(page.locator("#job-line")).to_contain_text("1 indexed")
    page.get_by_role("button", name="Close").click()
    page.locator("#results .open").first.click()
    page.get_by_role("button", name="Remove…").click()
    is_accessible(page, "sure")
    page.keyboard.press("Escape")
    is_accessible(page, "removable")


def is_focusable(node):
    properties = node.get("properties", ())
    states = {x["name"]: x["value"].get("value") for x in properties}
    return states.get("focusable") and node["role"]["value"] != "RootWebArea"
