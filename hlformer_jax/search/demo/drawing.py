"""Frames of the demo's videos: coloured shapes on a background that drifts.

A shape trails paler copies of itself where it was; one that grows holds smaller outlines of itself,
and one that shrinks has paler larger ones behind it. So a single frame tells what happens.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from hlformer_jax import files
from hlformer_jax.search.demo.scenes import COLOURS, Action, Scene, Shape, Story, training_moments

WIDTH, HEIGHT, RATE = 192, 144, 12  # pixels of a frame, and frames a second
_FINER = 2  # shapes are drawn so many times as large and scaled down, for smooth edges
_ECHOES = 4
_ECHO_STEP = 0.1  # between two echoes of a shape that moves, in heights of the picture ...
_ECHO_SCALE = 0.14  # ... and in sizes of a shape that grows or shrinks
_TRAVEL = 0.2  # half of the way of a shape that moves, as a share of the picture
_DARKEST, _LIGHTEST = 25, 60  # of backgrounds, so that every shape stands out
Picture = UInt8[np.ndarray, "144 192 3"]


class Background:
    """A dull pattern that drifts, with noise: never the same in two videos."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        coarse = rng.uniform(_DARKEST, _LIGHTEST, (4, 8, 1)) + rng.uniform(-8, 8, (4, 8, 3))
        coarse = np.concatenate([coarse, coarse[:, :1]], axis=1)  # so that it drifts without a seam
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
        self._pattern = _resized(image, 2 * WIDTH, HEIGHT).astype(np.int16)
        self._noise = rng.integers(-4, 5, (6, HEIGHT, WIDTH, 1), np.int16)
        self._speed = float(rng.uniform(-12, 12))

    def at(self, time: float) -> Picture:
        """The background at a second."""
        drifted = np.roll(self._pattern, round(self._speed * time), axis=1)[:, :WIDTH]
        noise = self._noise[round(time * RATE) % len(self._noise)]
        return (drifted + noise).clip(0, 255).astype(np.uint8)


def draw(scene: Scene, time: float, background: Picture) -> Picture:
    """The frame of a scene at a second of the video."""
    if scene.action is None:
        return background
    height, width = HEIGHT * _FINER, WIDTH * _FINER
    image = Image.fromarray(background.repeat(_FINER, 0).repeat(_FINER, 1))
    pencil = ImageDraw.Draw(image)
    behind = tuple(int(x) for x in background.mean((0, 1)))
    share = (time - scene.start) / (scene.end - scene.start)
    for index, thing in enumerate(scene.things):
        colour = COLOURS[thing.colour]
        x, y, size = _place(scene, index, share)
        way = _way(scene.action, index)
        left, top, radius = x * width, y * height, size * height
        if scene.action == "grows":
            pencil.polygon(outline(thing.shape, left, top, radius), fill=colour)
            for echo in range(1, _ECHOES + 1):
                smaller = outline(thing.shape, left, top, radius * (1 - _ECHO_SCALE * echo))
                pencil.polygon(smaller, outline=(0, 0, 0), width=_FINER)
            continue
        for echo in range(_ECHOES, -1, -1):
            paler = _mixed(colour, behind, 0 if echo == 0 else 0.35 + 0.12 * echo)
            step = -echo * _ECHO_STEP * height
            larger = 1 + _ECHO_SCALE * echo * (scene.action == "shrinks")
            place = (left + way[0] * step, top + way[1] * step)
            pencil.polygon(outline(thing.shape, *place, radius * larger), fill=paler)
    return np.asarray(image.reduce(_FINER))


def outline(shape: Shape, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Corners of a shape around a point, in pixels, y downwards; twice `radius` wide, about."""
    if shape == "circle":
        polar = [(0.95, 10.0 * k) for k in range(36)]
    elif shape == "square":
        polar = [(1.2, 45.0 + 90 * k) for k in range(4)]
    elif shape == "triangle":
        polar = [(1.2, 120.0 * k) for k in range(3)]
    else:
        polar = [(0.5 if k % 2 else 1.25, 36.0 * k) for k in range(10)]
    at = lambda length, angle: (x + length * math.sin(angle), y - length * math.cos(angle))
    return [at(radius * length, math.radians(angle)) for length, angle in polar]


def _cropped(picture: Picture) -> Picture:
    box = (WIDTH // 16, HEIGHT // 16, WIDTH - WIDTH // 16, HEIGHT - HEIGHT // 16)
    inner = Image.fromarray(picture).crop(box)
    return _resized(inner, WIDTH, HEIGHT)


def _resized(image: Image.Image, width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


CHANGES: dict[str, Callable[[Picture], Picture]] = {
    "": lambda picture: picture,
    "bright": lambda picture: (1.15 * picture + 8).clip(0, 255).astype(np.uint8),
    "cropped": _cropped,  # an eighth less high and wide
    "coarse": lambda picture: picture[::2, ::2].repeat(2, 0).repeat(2, 1),
}
"""What a near-duplicate does to every frame of its original."""


def write_video(story: Story, path: Path) -> None:
    """Renders a video as H.264 in MP4, whole or not at all."""
    background = Background(story.seed)
    options = {"preset": "veryfast", "crf": "26", "threads": "1"}
    with (
        files.atomic_write(path, files.Replace.NOTHING) as draft,
        av.open(str(draft), "w", format="mp4") as container,
    ):
        stream = container.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.gop_size = 4 * RATE
        for scene in story.scenes:
            for number in range(round(scene.start * RATE), round(scene.end * RATE)):
                picture = draw(scene, number / RATE, background.at(number / RATE))
                picture = CHANGES[story.change](picture)
                frame = av.VideoFrame.from_ndarray(picture, "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def frames_for_training(
    seed: int, count: int, size: int = 64
) -> tuple[UInt8[np.ndarray, "count size size 3"], list[str]]:
    """Single frames of scenes that are in none of the demo's videos, and a sentence of each.

    The picture is squeezed into a square of `size` pixels, as SigLIP's preprocessing does; the
    sentences say what happens in all the ways that the demo knows.
    """
    rng = np.random.default_rng((seed, 2))
    images, said = np.empty((count, size, size, 3), np.uint8), []
    background = Background(int(rng.integers(2**31)))
    for index, (scene, sentence) in enumerate(training_moments(seed, count)):
        if index % 8 == 0:
            background = Background(int(rng.integers(2**31)))
        time = float(rng.uniform(scene.start, scene.end))
        picture = Image.fromarray(draw(scene, time, background.at(100 * time)))
        images[index] = _resized(picture, size, size)
        said.append(sentence)
    return images, said


def _place(scene: Scene, index: int, share: float) -> tuple[float, float, float]:
    """Where a shape is: x and y as shares of the picture, and its size."""
    x, y = scene.lane
    if scene.action == "meets":
        # They touch after two thirds, and stay.
        size = 0.8 * scene.size
        apart = 0.3 - min(share / 0.67, 1) * (0.3 - 0.95 * size * HEIGHT / WIDTH)
        return 0.5 + (apart if index else -apart), y, size
    if scene.action in ("grows", "shrinks"):
        grown = share if scene.action == "grows" else 1 - share
        return x, y, scene.size * (0.75 + 0.5 * grown)
    across, down = _way(scene.action, index)
    far = _TRAVEL * (2 * share - 1)
    return (0.5 + across * far if across else x), (0.5 + down * far if down else y), scene.size


def _way(action: Action | None, index: int) -> tuple[int, int]:
    """Which way a shape moves: to the right and down."""
    if action == "meets":
        return (-1 if index else 1), 0
    ways = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
    return ways.get(action or "", (0, 0))


def _mixed(colour: tuple[int, ...], other: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round((1 - share) * a + share * b) for a, b in zip(colour, other, strict=True))
