"""Frames of the demo's videos: coloured shapes on a background that drifts.

A single frame shows the action: a moving shape trails paler copies of itself, a growing shape has
smaller outlines inside, and a shrinking shape has larger, paler copies behind it.
"""

import math
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from hlformer_jax import files
from hlformer_jax.search.demo.scenes import COLOURS, Action, Scene, Shape, Story, training_moments

WIDTH, HEIGHT, RATE = 192, 144, 12  # pixels of a frame, and frames a second
_OVERSAMPLING = 2  # factor by which shapes are drawn larger and scaled down, for smooth edges
_ECHOES = 4  # number of copies behind or inside a shape, which show its action
_ECHO_STEP = 0.1  # distance between echoes of a moving shape, in heights of the picture
_ECHO_SCALE = 0.14  # relative difference in size between echoes of a growing or shrinking shape
_TRAVEL = 0.2  # half of the path of a moving shape, as a share of the picture
_DARKEST, _LIGHTEST = 25, 60  # values of backgrounds, which are dark so that shapes stand out

Picture = UInt8[np.ndarray, "144 192 3"]


class Background:
    """A dull drifting pattern with noise, different in every video."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        coarse = rng.uniform(_DARKEST, _LIGHTEST, (4, 8, 1)) + rng.uniform(-8, 8, (4, 8, 3))
        coarse = np.concatenate([coarse, coarse[:, :1]], axis=1)  # no seam as it drifts
        image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
        self._pattern = _resize(image, 2 * WIDTH, HEIGHT).astype(np.int16)
        self._noise = rng.integers(-4, 5, (6, HEIGHT, WIDTH, 1), np.int16)
        self._speed = float(rng.uniform(-12, 12))

    def at(self, time: float) -> Picture:
        """Return the background at a second."""
        drifted = np.roll(self._pattern, round(self._speed * time), axis=1)[:, :WIDTH]
        noise = self._noise[round(time * RATE) % len(self._noise)]
        return (drifted + noise).clip(0, 255).astype(np.uint8)


def draw(scene: Scene, time: float, background: Picture) -> Picture:
    """Return the frame of a scene at a second of the video."""
    if scene.action is None:
        return background
    height, width = HEIGHT * _OVERSAMPLING, WIDTH * _OVERSAMPLING
    image = Image.fromarray(background.repeat(_OVERSAMPLING, 0).repeat(_OVERSAMPLING, 1))
    pencil = ImageDraw.Draw(image)
    background_colour = tuple(int(x) for x in background.mean((0, 1)))
    share = (time - scene.start) / (scene.end - scene.start)
    for index, thing in enumerate(scene.things):
        colour = COLOURS[thing.colour]
        x, y, size = _position(scene, index, share)
        right, down = _direction(scene.action, index)
        x, y, radius = x * width, y * height, size * height
        if scene.action == "grows":
            pencil.polygon(outline(thing.shape, x, y, radius), fill=colour)
            for echo in range(1, _ECHOES + 1):
                smaller = outline(thing.shape, x, y, radius * (1 - _ECHO_SCALE * echo))
                pencil.polygon(smaller, outline=(0, 0, 0), width=_OVERSAMPLING)
            continue
        for echo in range(_ECHOES, -1, -1):
            paler = _mix(colour, background_colour, 0 if echo == 0 else 0.35 + 0.12 * echo)
            step = -echo * _ECHO_STEP * height
            larger = 1 + _ECHO_SCALE * echo * (scene.action == "shrinks")
            corners = outline(thing.shape, x + right * step, y + down * step, radius * larger)
            pencil.polygon(corners, fill=paler)
    return np.asarray(image.reduce(_OVERSAMPLING))


def outline(shape: Shape, x: float, y: float, radius: float) -> list[tuple[float, float]]:
    """Return the corners of a shape around a point, in pixels; it is about 2 `radius` wide."""
    if shape == "circle":
        polar = [(0.95, 10.0 * k) for k in range(36)]
    elif shape == "square":
        polar = [(1.2, 45.0 + 90 * k) for k in range(4)]
    elif shape == "triangle":
        polar = [(1.2, 120.0 * k) for k in range(3)]
    else:
        polar = [(0.5 if k % 2 else 1.25, 36.0 * k) for k in range(10)]
    return [
        (
            x + radius * length * math.sin(math.radians(angle)),
            y - radius * length * math.cos(math.radians(angle)),
        )
        for length, angle in polar
    ]


def _resize(image: Image.Image, width: int, height: int) -> UInt8[np.ndarray, "h w 3"]:
    return np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))


def write_video(story: Story, path: Path) -> None:
    """Render a video as H.264 in MP4. The file appears when it is complete.

    Args:
      story: the video.
      path: the path of the file, which must not exist.
    """
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
                frame = av.VideoFrame.from_ndarray(picture, "rgb24")
                frame.pts, frame.time_base = number, Fraction(1, RATE)
                container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def frames_for_training(
    seed: int, count: int, size: int = 64
) -> tuple[UInt8[np.ndarray, "count size size 3"], list[str]]:
    """Return single frames of sampled scenes, and a sentence for each.

    The scenes are sampled independently of those of the demo's videos.

    Args:
      seed: the seed of the demo.
      count: number of frames.
      size: height and width to which frames are resized, as in SigLIP's preprocessing, in pixels.
    """
    rng = np.random.default_rng((seed, 2))
    images, sentences = np.empty((count, size, size, 3), np.uint8), []
    background = Background(int(rng.integers(2**31)))
    for index, (scene, sentence) in enumerate(training_moments(seed, count)):
        if index % 8 == 0:
            background = Background(int(rng.integers(2**31)))
        time = float(rng.uniform(scene.start, scene.end))
        picture = Image.fromarray(draw(scene, time, background.at(100 * time)))
        images[index] = _resize(picture, size, size)
        sentences.append(sentence)
    return images, sentences


def _position(scene: Scene, index: int, share: float) -> tuple[float, float, float]:
    """Return x and y of a shape as shares of the picture, and its size."""
    x, y = scene.lane
    if scene.action == "meets":
        # They touch after two thirds of the scene, and stay.
        size = 0.8 * scene.size
        distance = 0.3 - min(share / 0.67, 1) * (0.3 - 0.95 * size * HEIGHT / WIDTH)
        return 0.5 + (distance if index else -distance), y, size
    if scene.action in ("grows", "shrinks"):
        growth = share if scene.action == "grows" else 1 - share
        return x, y, scene.size * (0.75 + 0.5 * growth)
    right, down = _direction(scene.action, index)
    offset = _TRAVEL * (2 * share - 1)
    x = 0.5 + right * offset if right else x
    return x, (0.5 + down * offset if down else y), scene.size


def _direction(action: Action | None, index: int) -> tuple[int, int]:
    """Return the direction of a moving shape, to the right and down."""
    if action == "meets":
        return (-1 if index else 1), 0
    directions = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1)}
    return directions.get(action or "", (0, 0))


def _mix(first: tuple[int, ...], second: tuple[int, ...], share: float) -> tuple[int, ...]:
    return tuple(round((1 - share) * a + share * b) for a, b in zip(first, second, strict=True))
