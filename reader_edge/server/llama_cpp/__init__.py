"""What llama.cpp's server has besides: texts filled in for editors, and tokens."""
