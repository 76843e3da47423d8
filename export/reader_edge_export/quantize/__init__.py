"""How weights are stored: fp32, fp16, bf16, int8, int4, or as their file has them."""
