"""The full-scale world: vLLM generators and FSDP2 trainers on Ray."""
