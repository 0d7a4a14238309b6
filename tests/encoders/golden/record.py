"""Records tiny random models of each kind with transformers' outputs; README.md says how."""

import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import safetensors.torch
import sentencepiece
import tokenizers
import torch
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil

TEXTS = [
    "a red circle moves left",
    "",
    "A Photo of TWO dogs: they're running,  on the beach!",
    "Straße café 東京 \u00e9 e\u0301",
    "a person opens the door and walks to the window " * 20,
]
HIDDEN = 3
"""Sentences whose hidden states are kept."""

CORPUS = [
    "a red circle moves left on the beach",
    "two dogs are running to the door of the house",
    "a person opens the fridge and walks to the window, then closes it!",
    "they're taking a photo of a green square above the small blue triangle",
] * 4


def pictures():
    """Return a wide, a tall and a small image."""
    rng = np.random.default_rng(7)
    images = []
    for height, width in ((40, 61), (57, 38), (20, 17)):
        coarse = rng.integers(0, 256, (height // 4 + 1, width // 4 + 1, 3))
        images.append(np.kron(coarse, np.ones((4, 4, 1)))[:height, :width].astype(np.uint8))
    return images


def randomise(model, seed, dtype):
    """Randomise all weights, so that every part of a model changes its result, and round them."""
    torch.manual_seed(seed)
    for name, value in model.named_parameters():
        if name in ("logit_scale", "logit_bias"):
            value.data.fill_({"logit_scale": 1.7, "logit_bias": -2.3}[name])
        elif "norm" in name.lower() or "layrnorm" in name:
            value.data = (1.0 if name.endswith("weight") else 0.0) + 0.3 * torch.randn(value.shape)
        elif value.dim() > 1 and "embedding" not in name:
            value.data = torch.randn(value.shape) / (value[0].numel() ** 0.5)
        else:
            value.data = 0.5 * torch.randn(value.shape)
        value.data = value.data.to(dtype).float()
    return model.eval()


def record(out, model, ids, pixels):
    """Record the outputs of transformers in float32."""
    with torch.no_grad():
        text = model.get_text_features(input_ids=torch.tensor(ids), return_dict=True)
        image = model.get_image_features(pixel_values=torch.tensor(pixels), return_dict=True)

    def unit(x):
        return (x / x.norm(dim=-1, keepdim=True)).numpy()

    np.savez_compressed(
        out / "expected.npz",
        ids=np.asarray(ids, np.int32),
        pixels=np.asarray(pixels, np.float32)[:, :, ::3],
        sentences=unit(text.pooler_output),
        images=unit(image.pooler_output),
        tokens=text.last_hidden_state[:HIDDEN].numpy(),
        patches=image.last_hidden_state[:1].numpy(),
    )


def write(path, content):
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def sizes(width, hidden, layers, heads, **more):
    """Return the section of one encoder in a config.json."""
    return {
        "hidden_size": width,
        "intermediate_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        **more,
    }


def clip_vocabulary():
    """Bytes, bytes at a word's end, merged pairs, and the two marks last, as OpenAI has them."""
    pieces = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer = tokenizers.Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    tokenizer.pre_tokenizer = pieces
    trainer = trainers.BpeTrainer(
        vocab_size=110, end_of_word_suffix="</w>", show_progress=False, special_tokens=[]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    merges = [tuple(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = letters + [f"{letter}</w>" for letter in letters] + ["".join(pair) for pair in merges]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return {word: i for i, word in enumerate(dict.fromkeys(words))}, merges


def old_clip(out):
    """OpenAI's folder: pooled at the largest id, padded with the end mark, bare sizes."""
    vocabulary, merges = clip_vocabulary()
    tokenizer = transformers.CLIPTokenizer(vocabulary, merges)
    tokenizer.save_pretrained(out)
    marks = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": 1}
    text = sizes(16, 32, 2, 2, vocab_size=len(vocabulary), **marks)
    vision = sizes(24, 40, 3, 3, image_size=32, patch_size=8)
    config = transformers.CLIPConfig(
        text_config=dict(text), vision_config=dict(vision), projection_dim=12
    )
    write(
        out / "config.json",
        {
            "architectures": ["CLIPModel"],
            "model_type": "clip",
            "projection_dim": 12,
            "logit_scale_init_value": 2.6592,
            "text_config": {**text, "hidden_size": 999},
            "text_config_dict": text,
            "vision_config": vision,
            "vision_config_dict": None,
        },
    )
    model = randomise(transformers.CLIPModel(config), 1, torch.float32)
    state = {name: value.contiguous() for name, value in model.state_dict().items()}
    state["text_model.embeddings.position_ids"] = torch.arange(77)[None]
    state["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    safetensors.torch.save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    processor = {
        "crop_size": 32,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "CLIPFeatureExtractor",
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "resample": 3,
        "size": 32,
    }
    write(out / "preprocessor_config.json", processor)
    ids = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=77)["input_ids"]
    pixels = CLIPImageProcessorPil.from_pretrained(out)(pictures())["pixel_values"]
    record(out, transformers.CLIPModel.from_pretrained(out), ids, np.stack(pixels))


def new_clip(out):
    """A folder as transformers 5 saves it: another end mark, padding beyond it, several files."""
    vocabulary, merges = clip_vocabulary()
    tokenizer = transformers.CLIPTokenizer(vocabulary, merges, pad_token="<pad>")
    tokenizer.model_max_length = 12
    marks = {f"{x}_token_id": getattr(tokenizer, f"{x}_token_id") for x in ("bos", "eos", "pad")}
    options = {"max_position_embeddings": 12, "hidden_act": "gelu", "layer_norm_eps": 1e-3}
    text = sizes(20, 28, 2, 4, vocab_size=len(tokenizer), **options, **marks)
    vision = sizes(16, 24, 1, 2, image_size=36, patch_size=12, hidden_act="gelu")
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=18)
    model = randomise(transformers.CLIPModel(config), 2, torch.float16)
    model.half().save_pretrained(out, max_shard_size="20KB")
    images = CLIPImageProcessorPil(size={"shortest_edge": 40}, crop_size=36)
    transformers.CLIPProcessor(images, tokenizer).save_pretrained(out)
    loaded = transformers.CLIPModel.from_pretrained(out, dtype=torch.float32)
    ids = tokenizer(TEXTS, padding="max_length", truncation=True, max_length=12)["input_ids"]
    record(out, loaded, ids, np.stack(images(pictures())["pixel_values"]))


def siglip(out):
    """Defaults left out; patches that do not fill the image; capitals and punctuation removed."""
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "corpus.txt")
        plain = str.maketrans("", "", "!',.:")
        lines.write_text("\n".join(line.translate(plain) for line in CORPUS), encoding="utf-8")
        sentencepiece.SentencePieceTrainer.train(
            input=str(lines),
            model_prefix=str(pathlib.Path(folder, "spiece")),
            vocab_size=50,
            pad_id=0,
            eos_id=1,
            unk_id=2,
            bos_id=-1,
            normalization_rule_name="identity",
            minloglevel=2,
        )
        model_file = pathlib.Path(folder, "spiece.model")
        slow = transformers.SiglipTokenizer(str(model_file))
        pieces = sentencepiece.SentencePieceProcessor(str(model_file))
        ids = slow(TEXTS, padding="max_length", truncation=True, max_length=64)["input_ids"]
    number = pieces.get_piece_size()
    scores = [(pieces.id_to_piece(i), pieces.get_score(i)) for i in range(number)]
    fast = tokenizers.Tokenizer(models.Unigram(scores, unk_id=2))
    fast.pre_tokenizer = pre_tokenizers.Metaspace()
    fast.decoder = decoders.Metaspace()
    fast.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    fast.add_special_tokens(["</s>", "<unk>"])
    fast.save(str(out / "tokenizer.json"))
    settings = {
        "eos_token": "</s>",
        "model_input_names": ["input_ids"],
        "pad_token": {"__type": "AddedToken", "content": "</s>", "special": True},
        "tokenizer_class": "SiglipTokenizer",
        "unk_token": "<unk>",
    }
    write(out / "tokenizer_config.json", settings)
    write(
        out / "config.json",
        {
            "architectures": ["SiglipModel"],
            "model_type": "siglip",
            "text_config": sizes(24, 36, 2, 2, vocab_size=number),
            "vision_config": sizes(24, 40, 2, 4, image_size=36, patch_size=8),
        },
    )
    model = transformers.SiglipModel(transformers.SiglipConfig.from_pretrained(out))
    model = randomise(model, 3, torch.float32)
    safetensors.torch.save_file(model.state_dict(), out / "model.safetensors")
    images = SiglipImageProcessorPil(size={"height": 36, "width": 36})
    images.save_pretrained(out)
    path = out / "preprocessor_config.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    write(path, {k: v for k, v in content.items() if k not in ("resample", "image_mean")})
    pixels = SiglipImageProcessorPil.from_pretrained(out)(pictures())["pixel_values"]
    record(out, model, ids, np.stack(pixels))


def siglip2(out):
    """A Gemma tokenizer, lower case, an end mark that tokenizer.json does not know of; bfloat16."""
    marks = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    fast = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    fast.normalizer = normalizers.Replace(" ", "▁")
    fast.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=360,
        special_tokens=[*marks, *(f"<0x{i:02X}>" for i in range(256))],
        show_progress=False,
    )
    fast.train_from_iterator(CORPUS, trainer)
    content = json.loads(fast.to_str())
    # Bytes are not marks; as in Gemma's file, the start is marked.
    content["added_tokens"] = content["added_tokens"][: len(marks)]
    fast = tokenizers.Tokenizer.from_str(json.dumps(content))
    fast.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    oracle = transformers.PreTrainedTokenizerFast(
        tokenizer_object=fast, pad_token="<pad>", padding_side="right"
    )
    lower = [text.lower() for text in TEXTS]
    ids = oracle(lower, padding="max_length", truncation=True, max_length=64)["input_ids"]
    fast.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", 2)]
    )
    fast.save(str(out / "tokenizer.json"))
    settings = {
        "add_bos_token": False,
        "add_eos_token": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "model_input_names": ["input_ids"],
        "pad_token": "<pad>",
        "padding_side": "right",
        "tokenizer_class": "GemmaTokenizer",
        "unk_token": "<unk>",
    }
    write(out / "tokenizer_config.json", settings)
    config = transformers.SiglipConfig(
        text_config=sizes(16, 20, 1, 2, vocab_size=fast.get_vocab_size(), projection_size=24),
        vision_config=sizes(24, 40, 2, 2, image_size=32, patch_size=8),
    )
    model = randomise(transformers.SiglipModel(config), 4, torch.bfloat16)
    model.bfloat16().save_pretrained(out)
    images = SiglipImageProcessorPil(size={"height": 32, "width": 32}, resample=2)
    images.save_pretrained(out)
    loaded = transformers.SiglipModel.from_pretrained(out, dtype=torch.float32)
    record(out, loaded, ids, np.stack(images(pictures())["pixel_values"]))


def roberta(out):
    """A masked language model, whose names have a prefix and whose head is not read; float16."""
    words = tokenizers.ByteLevelBPETokenizer()
    marks = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    words.train_from_iterator(CORPUS, 290, special_tokens=marks, show_progress=False)
    model = json.loads(words.to_str())["model"]
    merges = [tuple(pair) for pair in model["merges"]]
    tokenizer = transformers.RobertaTokenizer(model["vocab"], merges)
    tokenizer.save_pretrained(out)
    options = sizes(24, 40, 2, 3, vocab_size=len(tokenizer), layer_norm_eps=1e-5)
    config = transformers.RobertaConfig(**options, max_position_embeddings=34, type_vocab_size=1)
    model = randomise(transformers.RobertaForMaskedLM(config), 5, torch.float16)
    model.half().save_pretrained(out)
    loaded = transformers.RobertaModel.from_pretrained(out, dtype=torch.float32)
    inputs = tokenizer(
        TEXTS, padding="max_length", truncation=True, max_length=30, return_tensors="pt"
    )
    with torch.no_grad():
        states = loaded.eval()(**inputs).last_hidden_state
    ids = inputs["input_ids"].numpy().astype(np.int32)
    np.savez_compressed(out / "expected.npz", ids=ids, tokens=states.numpy())


def main():
    """Write the inputs, and all models or the named ones, into a folder."""
    out = pathlib.Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    write(out / "sentences.json", TEXTS)
    np.savez_compressed(out / "pictures.npz", *pictures())
    kinds = (old_clip, new_clip, siglip, siglip2, roberta)
    for kind in [kind for kind in kinds if kind.__name__ in (sys.argv[2:] or kind.__name__)]:
        out = pathlib.Path(sys.argv[1], kind.__name__)
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir(parents=True)
        kind(out)


main()
