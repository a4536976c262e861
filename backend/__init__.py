"""The full-scale world: vLLM generators and FSDP2 trainers in Ray actors, on GPUs or, with the tiny model, on CPUs."""
