# On the first node (10.0.0.1):
export VLLM_HOST_IP=10.0.0.1
ray start --head --port=6379
# On the second node (10.0.0.2):
export VLLM_HOST_IP=10.0.0.2
ray start --address=10.0.0.1:6379
# On the first node again; NCCL_DEBUG shows what it goes over:
NCCL_DEBUG=INFO vllm serve meta-llama/Meta-Llama-3-70B \
    --tensor-parallel-size 16 \
    --max-model-len 8192 \
    --distributed-executor-backend ray
