"""Files about images in folders of published models, with the values that their makers gave them (2025 and 2026)."""

from dataclasses import dataclass, field
from typing import Any

_ONE_255TH = 0.00392156862745098
_HALF = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_CLIP = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_DONE = {"do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True}


@dataclass(frozen=True)
class Published:
    """image_settings: of preprocessor_config.json. processor_settings: of processor_config.json.

    config: of config.json, what bears on images. processor_attributes: what the processor has of its tokenizer too.
    """

    image_class: str
    processor_class: str
    image_settings: dict[str, Any]
    config: dict[str, Any]
    processor_settings: dict[str, Any] = field(default_factory=dict)
    processor_attributes: dict[str, Any] = field(default_factory=dict)


def _qwen3(model_type: str) -> Published:
    return Published(
        "Qwen2VLImageProcessor",
        "Qwen3VLProcessor",
        {
            **{"size": {"longest_edge": 16777216, "shortest_edge": 65536}, "patch_size": 16, "merge_size": 2, **_HALF},
            **{"temporal_patch_size": 2, "processor_class": "Qwen3VLProcessor"},
            "image_processor_type": "Qwen2VLImageProcessorFast",
        },
        {
            "model_type": model_type,
            "vision_config": {
                **{"patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2},
                "num_position_embeddings": 2304,
            },
        },
        processor_attributes={"image_token": "<|image_pad|>"},
    )


def _lfm2(**changed: Any) -> Published:
    return Published(
        "Lfm2VlImageProcessor",
        "Lfm2VlProcessor",
        {
            **{"crop_size": None, "data_format": "channels_first", "default_to_square": True, "device": None},
            **{"disable_grouping": None, "do_center_crop": None, "do_convert_rgb": None, "do_image_splitting": True},
            **{"do_normalize": True, "do_pad": True, "do_rescale": True, "do_resize": True, "downsample_factor": 2},
            **{"encoder_patch_size": 16, **_HALF, "image_processor_type": "Lfm2VlImageProcessorFast"},
            **{"input_data_format": None, "max_image_tokens": 256, "max_num_patches": 1024, "min_image_tokens": 64},
            **{"max_pixels_tolerance": 2.0, "max_tiles": 10, "min_tiles": 2, "processor_class": "Lfm2VlProcessor"},
            **{"resample": 2, "rescale_factor": _ONE_255TH, "return_row_col_info": True, "return_tensors": None},
            **{"size": {"height": 512, "width": 512}, "tile_size": 512, "use_thumbnail": True, **changed},
        },
        {
            "model_type": "lfm2_vl",
            "downsample_factor": 2,
            "vision_config": {"patch_size": 16, "num_patches": 256},
        },
        {"processor_class": "Lfm2VlProcessor", "use_image_special_tokens": True},
        {
            **{"image_token": "<image>", "image_start_token": "<|image_start|>", "image_end_token": "<|image_end|>"},
            "image_thumbnail_token": "<|img_thumbnail|>",
        },
    )


def _tiled(model_type: str, class_name: str, tile: int, patch: int, scale: int, **changed: Any) -> Published:
    tokens = (tile // patch // scale) ** 2
    return Published(
        f"{class_name}ImageProcessor",
        f"{class_name}Processor",
        {
            **{**_DONE, "do_image_splitting": True, "do_pad": True, **_HALF, "resample": 1},
            **{"image_processor_type": f"{class_name}ImageProcessor", "max_image_size": {"longest_edge": tile}},
            **{"processor_class": f"{class_name}Processor", "rescale_factor": _ONE_255TH},
            **{"size": {"longest_edge": 4 * tile}, **changed},
        },
        {
            "model_type": model_type,
            "scale_factor": scale,
            "vision_config": {"patch_size": patch, "image_size": tile},
        },
        {"image_seq_len": tokens, "processor_class": f"{class_name}Processor"},
        {
            **{"image_seq_len": tokens, "image_token": "<image>", "fake_image_token": "<fake_token_around_image>"},
            **{"global_image_token": "<global-img>", "global_image_tag": "<global-img>"},
        },
    )


_VIDEO = {"fps": 1, "max_frames": 64, "video_size": {"longest_edge": 512}}
PROCESSORS = {
    "qwen3_5": _qwen3("qwen3_5"),
    "qwen3_vl": _qwen3("qwen3_vl"),
    "qwen2_5_vl": Published(
        "Qwen2VLImageProcessor",
        "Qwen3VLProcessor",
        {
            **{"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2},
            **{**_CLIP, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor"},
        },
        {
            "model_type": "qwen2_5_vl",
            "vision_config": {
                **{"patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112},
            },
        },
        processor_attributes={"image_token": "<|image_pad|>"},
    ),
    "mistral3": Published(
        "PixtralImageProcessor",
        "PixtralProcessor",
        {
            **{"crop_size": None, "data_format": "channels_first", "default_to_square": True, "device": None},
            **{"do_center_crop": None, **_DONE, **_CLIP, "image_processor_type": "PixtralImageProcessorFast"},
            **{"input_data_format": None, "patch_size": {"height": 14, "width": 14}, "return_tensors": None},
            **{"processor_class": "PixtralProcessor", "resample": 3, "rescale_factor": _ONE_255TH},
            "size": {"longest_edge": 1540},
        },
        {"model_type": "mistral3", "spatial_merge_size": 2, "vision_config": {"patch_size": 14, "image_size": 1540}},
        {
            **{"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]"},
            **{"patch_size": 14, "processor_class": "PixtralProcessor", "spatial_merge_size": 2},
        },
        {
            **{"image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]"},
            **{"patch_size": 14, "spatial_merge_size": 2},
        },
    ),
    "lfm2_vl": _lfm2(),
    "lfm2_vl without overview": _lfm2(use_thumbnail=False),
    "lfm2_vl whole": _lfm2(do_image_splitting=False),
    "gemma3": Published(
        "Gemma3ImageProcessor",
        "Gemma3Processor",
        {
            **{**_DONE, "do_convert_rgb": None, "do_pan_and_scan": None, **_HALF, "image_seq_length": 256},
            **{"image_processor_type": "Gemma3ImageProcessor", "pan_and_scan_max_num_crops": None},
            **{"pan_and_scan_min_crop_size": None, "pan_and_scan_min_ratio_to_activate": None},
            **{"processor_class": "Gemma3Processor", "resample": 2, "rescale_factor": _ONE_255TH},
            "size": {"height": 896, "width": 896},
        },
        {
            "model_type": "gemma3",
            "mm_tokens_per_image": 256,
            "vision_config": {"patch_size": 14, "image_size": 896},
        },
        {"image_seq_length": 256, "processor_class": "Gemma3Processor"},
        {"full_image_sequence": f"\n\n<start_of_image>{'<image_soft_token>' * 256}<end_of_image>\n\n"},
    ),
    "gemma4": Published(
        "Gemma4ImageProcessor",
        "Gemma4Processor",
        {
            **{"do_convert_rgb": True, "do_normalize": False, "do_rescale": True, "do_resize": True},
            **{"image_mean": [0.0] * 3, "image_processor_type": "Gemma4ImageProcessor", "image_seq_length": 280},
            **{"image_std": [1.0] * 3, "max_soft_tokens": 280, "patch_size": 16, "pooling_kernel_size": 3},
            **{"resample": 3, "rescale_factor": _ONE_255TH},
        },
        {"model_type": "gemma4", "vision_config": {"patch_size": 16, "pooling_kernel_size": 3}},
        {
            **{"audio_ms_per_token": 40, "audio_seq_length": 750, "image_seq_length": 280},
            "processor_class": "Gemma4Processor",
        },
        {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
    ),
    "smolvlm": _tiled("smolvlm", "SmolVLM", 512, 16, 4, video_sampling=_VIDEO),
    "smolvlm of 384": _tiled("smolvlm", "SmolVLM", 384, 14, 3, video_sampling=_VIDEO),
    "smolvlm whole": _tiled("smolvlm", "SmolVLM", 512, 16, 4, do_image_splitting=False),
    "idefics3": _tiled("idefics3", "Idefics3", 364, 14, 2),
}
