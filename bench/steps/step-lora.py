import torch
from _ranks import train
from diffusers import UNet2DConditionModel
from lora_diffusion import inject_trainable_lora

torch.manual_seed(0)
unet = UNet2DConditionModel(
    sample_size=8, block_out_channels=(32, 32), layers_per_block=1, cross_attention_dim=16, attention_head_dim=8,
    norm_num_groups=8, down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
)  # fmt: skip
unet.requires_grad_(requires_grad=False)
inject_trainable_lora(unet)


def loss_of(wrapped):
    noise = torch.randn(2, 4, 8, 8)
    return (wrapped(noise, torch.tensor([1, 2]), torch.randn(2, 4, 16)).sample - noise).square().mean()


train(unet, loss_of)
