# /// script
# dependencies = ["hf-packing[peft]"]
# ///
"""
Supervised fine-tuning on packs: the recipe for a laptop, a Colab notebook and 8×A100 alike.

# A first run, on any machine, without a hub
```bash
python recipes/sft.py --config recipes/quickstart.yaml
```

# Full training on 8 GPUs
```bash
accelerate launch --config_file recipes/accelerate_configs/fsdp2.yaml \\
    recipes/sft.py --config recipes/llama3.1-8b/sft/config_full.yaml
```

# LoRA on one GPU, settings changed on the command line
```bash
accelerate launch --config_file recipes/accelerate_configs/single_gpu.yaml \\
    recipes/sft.py --config recipes/qwen3-0.6b/sft/config_lora.yaml --max_length 4096
```

Options are those of `trl sft` (ScriptArguments, SFTConfig, ModelConfig) and the packing fields of PackingSFTConfig.
"""

from hf_packing.train.run import main


if __name__ == "__main__":
    main()
