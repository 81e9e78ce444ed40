import torch
from _ranks import train
from denoising_diffusion_pytorch import GaussianDiffusion, Unet

torch.manual_seed(0)
model = GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=16, timesteps=10)
train(model, lambda wrapped: wrapped(torch.rand(2, 3, 16, 16)))
