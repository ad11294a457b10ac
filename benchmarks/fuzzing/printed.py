"""Samples of what clusters print, one list for each family of formats that the doctor reads."""

from __future__ import annotations

import json
import pickle

_NCCL = b"""# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  4000 on     host-0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
host-0:4000:4001 [0] NCCL INFO Bootstrap: Using eth0:10.0.0.1<0>
NCCL version 2.23.4+cuda12.6
host-0:4000:4001 [0] NCCL INFO NCCL_IB_HCA set by environment to =mlx5_0
host-0:4000:4001 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
host-0:4000:4001 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'
host-0:4000:4001 [0] NCCL INFO GPU Direct RDMA Disabled for GPU 1000 / HCA 0 (distance 8 > 5)
host-0:4000:4001 [0] NCCL INFO ncclCommInitRank comm 0x1 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 1b000 commId 0x5 - Init START
host-0:4000:4001 [0] NCCL INFO comm 0x1 rank 0 nRanks 2 nNodes 2 localRanks 1 localRank 0 MNNVL 0
host-0:4000:4001 [0] NCCL INFO === System : maxBw 240.0 totalBw 240.0 ===
host-0:4000:4001 [0] NCCL INFO + PCI[24.0] - GPU/0-1b000 (0)
host-0:4000:4001 [0] NCCL INFO               + NVL[20.0] - GPU/0-2b000
host-0:4000:4001 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 12, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1
host-0:4000:4001 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
host-0:4000:4001 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
host-0:4000:4001 [0] NCCL INFO Init timings - ncclCommInitRank: rank 0 nranks 2 total 99.1 (kernels 0.5, bootstrap 98.0)
host-0:4000:4001 [0] NCCL INFO AllReduce: opCount 1f sendbuff 0x1 recvbuff 0x2 count 64 datatype 7 op 0 root 0 comm 0x1 [nranks=2] stream 0x5
[2026-01-02 03:04:05] host-0:4000:4001 [0] transport/net_ib.cc:1 NCCL WARN NET/IB: Got completion from peer 10.0.0.2<1> with status=12
   268435456      67108864     float     sum      -1host-0:4000:4001 [0] NCCL INFO Connected all rings
   1000.0  268.44  503.32      0    1001.0  268.17  502.81      0
# Avg bus bandwidth    : 503.07
"""
_PERFTEST = b"""                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : mlx5_0
 Mtu             : 4096[B]
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      5000             46000.00            45999.00\t\t   0.735984
"""
_PERFTEST_SHAPES = b"""                    RDMA_Write Bidirectional BW Test
 Dual-port       : ON\t\tDevice         : mlx5_0
 Number of qps   : 2\t\tTransport type : IB
 Connection type : RC\t\tUsing SRQ      : OFF
 Link type       : Ethernet
 local address: LID 0000 QPN 0x0126 PSN 0xd1eee2 RKey 0x203f00 VAddr 0x007f2b4f6d0000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:00:00:01
 #bytes    #sl      #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]    CPU_Util[%]
 65536    3           5000           391.00            390.11                  0.743    12.50
 65536    3           5000           391.00            12.11                  0.743    12.50
\thw_counters/out_of_sequence=12
 Local results:
                    Send Latency Test
#, usec
1, 2.31
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]
 2       1000          1.98           9.11         2.05              2.10             0.31           2.60
 #bytes        #iterations       t_avg[usec]    tps average
 8             421337            3.42            292397.66
Bad wc status -- 12 -- 129
"""
_PCI = b"""18:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tDevCap:\tMaxPayload 512 bytes, PhantFunc 0
\t\t\tExtTag+ RBE+
\t\tDevCtl:\tCorrErr- NonFatalErr-
\t\t\tRlxdOrd+ ExtTag- NoSnoop+
\t\t\tMaxPayload 128 bytes, MaxReadReq 4096 bytes
\t\tDevSta:\tCorrErr+ FatalErr+ UnsupReq+
\t\tUESta:\tDLP+ MalfTLP- UnsupReq+
\t\tCESta:\tRxErr+ Rollover+
\t\tDpcSta:\tTrigger+ Reason:01
\tKernel driver in use: mlx5_core
\tKernel modules: mlx5_core
"""
_PACKED = b"""{"log":"host-0:47:48 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\\n","stream":"stdout"}
{"level":"error","message":"CUDA error: an illegal memory access was encountered\\nTraceback"}
"""
_OBJECTS = b"""apiVersion: v1
items:
- kind: Node
  metadata: {name: gpu-1}
  status:
    allocatable: {nvidia.com/gpu: "7"}
    capacity: {nvidia.com/gpu: "8"}
    conditions: [{type: Ready, status: Unknown, message: Kubelet stopped posting node status.}]
- kind: Pod
  metadata: {name: train-0}
  status: {phase: Failed, containerStatuses: [{state: {terminated: {exitCode: 137, reason: OOMKilled}}}]}
kind: List
"""
_EVENT = {
    "apiVersion": "v1",
    "kind": "Event",
    "type": "Warning",
    "reason": "FailedMount",
    "message": "exit status 32",
}
_DRIVERS = b"""link rdmap16s27/1 tx_bytes 9182736 tx_pkts 22418 rx_drops 41000 retrans_timeout_events 190000
link rocep226s0/1
    rx_rdma_ucast_pkts 90000000
    tx_rdma_ack_timeout 8123
link mlx5_4/1 lqpn 8 type UD state RTS sq-psn 58 comm [mlx5_ib]
NIC statistics:
     pps_allowance_exceeded: 4000000
     queue_0_tx_cnt: 90000000
     continuous_roce_pause_events: 41
"""
_PERFTEST_JSON = b"""{
"test_info": {
"test": "RDMA_Write_BW_Test",
"Dual_port": "OFF",
"Device": "mlx5_0",
"Number_of_qps": 1,
"Mtu": 4096
},
"results": {
"MsgSize": 65536,
sl: 3,
"n_iterations": 5000,
"BW_peak": 391.00,
"BW_average": 390.11,
"MsgRate": 0.744076
}
}
"""
_XML = b"""<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="GenuineIntel">
    <pci busid="0000:17:00.0" class="0x030200" vendor="0x10de" device="0x20b5" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"><nvlink target="0000:65:00.0" count="1" tclass="0x030200"/></gpu>
    </pci>
    <pci busid="0000:4b:00.0" class="0x020000" link_speed="16.0 GT/s PCIe" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="100000" port="1" guid="0x1" gdr="0"/></nic>
    </pci>
  </cpu>
</system>
"""
_RAS = b"""Job summary
===========
  Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
      #  in group  per comm  per node  per comm  in group
      0         1         4       1-2        32        32  FINALIZE  MISMATCH
  DEAD
    1 job process is considered dead (unreachable via the RAS network)
    Process 3487984 on node 10.0.0.3 managing GPU 5
  #0-0 (cf264af53edbe986) INCOMPLETE
    Missing communicator data from 1 rank
    The missing rank: 21
    26 ranks have status UNKNOWN
    Rank 0 -- GPU 0 managed by process 507285 on node 10.0.0.4
"""
_DUMP = {
    "version": "2.5", "rank": 0, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
    "entries": [{"process_group": ["0", "default_pg"], "collective_seq_id": 3, "profiling_name": "nccl:all_reduce",
                 "input_sizes": [[4]], "output_sizes": [[4]], "input_dtypes": ["Float"], "state": "started",
                 "time_created_ns": 5, "timeout_ms": 600000, "is_p2p": False, "retired": False}],
}  # fmt: skip
_RAS_ERRORS = b"""Gathering data about the RAS network (timeout 5s)... obtained a result in 5.012s
 Warning: missing data from 2 processes (received from 30, expected 32)
  The missing processes:
  Process 7 on node 10.0.0.2 managing GPUs 0,1
#0-0 (cf264af53edbe986) ERROR
  Asynchronous errors on 3 ranks
  2 ranks reported Remote process error
  Rank 5 reported Unhandled CUDA error -- GPU 5 managed by process 507290 on node 10.0.0.2
#0-0 (cf264af53edbe986) MISMATCH
  Communicator ranks have different AllReduce operation counts
  30 ranks have launched up to operation 6650
  Rank 8 has not launched any operations -- [process information not found]
  The unknown ranks: 3,7-9
RAS Monitor Mode - watching for peer changes (Ctrl+C to exit)...
[2025-12-19 13:07:07] PEER_UNRESPONSIVE: Process 15 on node 10.0.0.2 managing GPU 1 no answer
"""
_RAS_JSON = {
    "nccl_version": "2.28.9",
    "communicators": [{"hash": "a", "missing_ranks": [{"rank": 2, "considered_dead": True}],
                       "ranks": [{"rank": 0, "host": "h", "status": {"init_state": "RUNNING"},
                                  "collective_counts": {"AllReduce": 640}}]}],
}  # fmt: skip
_CONFIG = {
    "PORT_QOS_MAP": {"Ethernet0": {"pfc_enable": "3,4", "dscp_to_tc_map": "AZURE"}, "Ethernet4": {}},
    "BUFFER_PROFILE": {"pg_lossless_x": {"size": "4620", "xon": "0", "xoff": "0"}},
    "WRED_PROFILE": {"A": {"green_min_threshold": "1048576", "green_max_threshold": "2097152", "ecn": "ecn_all"}},
}
_FABRIC = b"""Switch\t41 "S-248a0703008a8500"\t\t# "leaf-0" base port 0 lid 41 lmc 0
[1]\t"H-0c42a103002559fe"[1](c42a103002559fe) \t\t# "host-0 mlx5_0" lid 9 4xNDR
CA   134  1 0x7cfe9003003b4bde 4x EDR - SW  1719 10 0x7cfe9003009ce5b0 ( 'a HCA-1' - 'leaf' )
SW  2052 37 0x506b4b03005c2740 4x ???                                    'leaf'
Switch: 0x248a0703008a8500 leaf-0:
          1    2[  ] ==( 1X      106.25 Gbps Active/  LinkUp)==>      10    1[  ] "host-1 mlx5_0" ( Could be 4X)
# Port extended counters: Lid 1719 port 1 (CapMask: 0x5300 CapMask2: 0x0000002)
LinkDownedCounter:...............255
PortXmitDiscards:................20046
Errors for "leaf-0"
   GUID 0x248a0703008a8500 port 7: [SymbolErrorCounter == 812] [PortXmitWait == 9 (9.0K)]
START_PM_INFO
NodeGUID,PortGUID,PortNumber,symbol_error_counter,link_downed_counter
0x248a0703008a8500,0x248a0703008a8500,7,0x0,255
END_PM_INFO
"""
_ADAPTERS = b"""CA 'mlx5_0'
\tCA type: MT4129
\tPort 1:
\t\tState: Initializing
\t\tPhysical state: LinkUp
\t\tRate: 400
\t\tSM lid: 0
hca_id:\tmlx5_0
\tport:\t1
\t\tstate:\tPORT_INIT (2)
\t\tactive_mtu:\t4096 (5)
DEV\tPORT\tINDEX\tGID\tIPv4  \tVER\tDEV
mlx5_0\t1\t0\tfe80:0000:0000:0000:0e42:a1ff:fe4b:6c12\t\t\tv1\teth2
/sys/class/infiniband/mlx5_1/ports/1/counters/link_downed:255
/sys/class/infiniband/mlx5_1/ports/1/rate:400 Gb/sec (4X NDR)
Infiniband device 'mlx5_0' port 1 status:
\tstate:\t\t 2: INIT
\trate:\t\t 400 Gb/sec (4X NDR)
mlx5_0 port 1 ==> ibp26s0 (Down)
part number        | MQM9700
fan#1 (rpm)        | foo
PSU0 status        | ERROR
"""
_ETHERNET = b"""NIC statistics:
     rx_discards_phy: 51234
     tx_prio3_pause: 99120
Priority trust state: pcp
PFC configuration:
\tpriority    0   1   2   3
\tenabled     0   0   0   1
link mlx5_0/1 state DOWN physical_state POLLING netdev eth2
      Port Rx    PFC0    PFC1    PFC2    PFC3    PFC4    PFC5    PFC6    PFC7
    Ethernet0       0       0       0     1,5       0       0       0       0
Pool: ingress_lossless_pool
size  17170432
Profile: pg_lossless_100000_5m_profile
xoff        18432
"""
_GPU_TESTS = b"""nvbandwidth Version: v0.5
Device 0: NVIDIA H100 80GB HBM3 (00000000:18:00)
Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.34     N/A
[CUDA Bandwidth Test] - Starting...
 Host to Device Bandwidth, 1 Device(s)
   32000000\t\t\t24.8
Burning for 60 seconds.
\r10.0%  proc'd: 22 (131 Gflop/s) - 22 (131 Gflop/s)   errors: 0 - -1  (DIED!)   temps: 44 C - --
\tGPU 1: FAULTY
"""
_HOST = b"""[  12.345678] NVRM: Xid (PCI:0000:0f:00): 79, pid=1, GPU has fallen off the bus.
6,3964,206764307,-;nvidia-nvswitch2: SXid (PCI:0000:86:00.0): 12028, Non-fatal, Link 61 egress
kern  :warn  : 2026-01-21T04:41:44,285060+00:00 main[25]: segfault at 7f ip 00 sp 00 error 4 in libnccl.so.2[7f+d3]
mlx5_core 0000:19:00.0 eth2: Link down
mlx5_core 0000:19:00.0: 63.008 Gb/s available PCIe bandwidth, limited by 8.0 GT/s PCIe x8 link at 0000:18:00.0 (capable of 252.048 Gb/s)
\tGPU0\tGPU1\tNIC0\tCPU Affinity
GPU0\t X \tNV18\tPIX\t0-31
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)
\t Link 0: 26.562 GB/s
\t Link 1: <inactive>
18:00.0 PCI bridge: Broadcom / LSI PEX890xx
\t\tACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+
19:00.0 Infiniband controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16
\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)
max locked memory       (kbytes, -l) 64
shm              64M     0   64M   0% /dev/shm
[rank3]:[E1] [Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=42, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=6) ran
"""

_TABLES = b"""Addresses:
  Hostname:    gpu-3
Capacity:
  nvidia.com/gpu:     8
Allocatable:
  nvidia.com/gpu:     7
     Port    PG0    PG3
Ingress PG dropped packets:
     Port    PG0    PG3
---------  -----  -----
Ethernet0      0  1,803
    IFACE    STATE    RX_OK        RX_BPS    RX_UTIL    RX_ERR    RX_DRP
---------  -------  -------  ------------  ---------  --------  --------
Ethernet0        D        8  2000.00 MB/s     64.00%        10       100
      QUEUE       STATUS    STORM DETECTED/RESTORED    TX OK/DROP
-----------  -----------  -------------------------  ------------
Ethernet0:3      stormed                        1/0       100/300
Interface    Lossless priorities
-----------  ---------------------
Ethernet0    3,4
Profile: MINE
-------------------  -------
ecn                  ecn_all
green_min_threshold  1000
green_max_threshold  2000
-------------------  -------
pfc-cap 8 macsec-bypass off delay 0
prio-pfc 0:off 1:off 2:off 3:on 4:off 5:off 6:off 7:off
dscp-prio 26:3 48:6
sminfo: sm lid 1 sm guid 0x2c9, activity count 9411 priority 14 state 3 SMINFO_MASTER
PSU    Model    Status    Warning
-----  -------  --------  ---------
PSU 1  M7       NOT OK    True
Neighbor  V  AS     MsgRcvd  MsgSent  TblVer  InQ  OutQ  Up/Down  State/PfxRcd  Name
10.0.0.1  4  65001  7        7        7       0    0     1d02h    Connect       spine1
Operational Info
State                              : Active
Recommendation                     : No issue was observed
Effective Physical BER             : 15E-255
Link Down Counter                  : 7
Rx Power Current [dBm]             : 1.1,-9.7 [-5.2..6]
    device          \t   node GUID
    mlx5_0          \t0012340000000007
PING 10.0.0.7 (10.0.0.7) 8972(9000) bytes of data.
7 packets transmitted, 0 received, 100% packet loss, time 7ms
+-----------+----------------------+
| Diagnostic| Result               |
| pcie      | Fail                 |
| Warning   | GPU 7 is running at P|
|           | CI link width 4X, whi|
|           | ch is below the minim|
+-----------+----------------------+
"""
_LAUNCHERS = b"""n1: [rank0]:[E626 06:24:44.9 ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8, OpType=ALLREDUCE, Timeout(ms)=6)
n1:   | 2025-05-16T16:39:51.208-07:00 | libfabric:85:17::core:core:fi_getinfo_():1<warn> fi_getinfo: provider efa output empty list
n1: [W socket.cpp:697] [c10d] The client socket has failed to connect to [node1]:29500 (errno: 111 - Connection refused).
n1: Last error:
n1: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401
n1: [3] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device
n1: INFO 05-06 08:55:10 [api_server.py:1287] vLLM API server version 0.8.5
n1: DataLoader worker (pid 9) is killed by signal: Bus error.
n1: BOOT_IMAGE=/vmlinuz root=/dev/sda1 ro intel_iommu=on
n1: NCCL_IB_TC=26
"""

_MESSAGES = b"""2026-01-01 10:00:01,000 [rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.
ERROR 01-01 10:00:02 [core.py:340]   File "/opt/x.py", line 564, in execute_method
ERROR 01-01 10:00:02 [core.py:340] ValueError: 40 heads must be divisible by 16
[n1:7:0:7] ib_mlx5_log.c:139  Remote QP on mlx5_0:1/IB (synd 0x14 vend 0x89 hw_synd 0/0)
srun: error: Task launch for StepId=96.0 failed on node n2: No such process
[ 12.5] mlx5_core 0000:c1:00.0: Detected insufficient power on the PCIe slot (27W).
frobnicator: WARN the widget is sad
"""

_MODULES = b"""\tIdentifier                                : 0x11 (QSFP28)
\tRcvr signal avg optical power(Channel 1) : 0.0001 mW / -40.00 dBm
\tLaser rx power high alarm threshold       : 3.5 mW / 5.50 dBm
\tLaser rx power low alarm threshold        : 0.1 mW / -9.00 dBm
Ethernet1/1
    transceiver is present
  Rx Power     -30.45 dBm --    2.00 dBm  -13.90 dBm   -1.00 dBm     -9.90 dBm
Ethernet0: SFP EEPROM detected
        ChannelMonitorValues:
                RX1Power: -30.1dBm
                RxPowerLowAlarm   : -13.5067dBm
Kernel Interface table
Iface      MTU    RX-OK RX-ERR RX-DRP RX-OVR    TX-OK TX-ERR TX-DRP TX-OVR Flg
eth0      9000   100000    900      0      0       50      0      0      0 BMRU
Inter-|   Receive                                                |  Transmit
  eth0: 99 1000000 900 0 0 0 0 0 99 5 0 0 0 0 0 0
2: eth0: <BROADCAST,MULTICAST,UP,LOWER_UP> mtu 1500 qdisc mq state UP mode DEFAULT
    RX:  bytes  packets errors dropped  missed   mcast
        1  9000000  5000 0 0 0
Neighbor ID     Pri State           Up Time         Dead Time Address         Interface
10.0.0.3          1 ExStart/DR      10m42s   37.756s 10.0.0.4        eth2:10.0.0.5
Peer                     AS      InPkt     OutPkt    OutQ   Flaps Last Up/Dwn State|#Active/Received
192.0.2.254  64496  1165670  1238837  0  1 9w2d 5:23:37 Connect
index, name, pcie.link.width.current, pcie.link.width.max, clocks_throttle_reasons.active
0, NVIDIA H100 80GB HBM3, 8, 16, 0x0000000000000084
  1 | 12/24/2022 | 13:58:36 | Critical Interrupt #0x90 | Bus Fatal Error | Asserted
ID  | Name           | Type     | State    | Reading | Units | Event
1   | SysHealth_Stat | Chassis  | Critical | N/A     | N/A   | 'transition'
START_ERRORS_LINKS
Scope,NodeGUID,PortGUID,PortNumber,EventName,Summary
PORT,0xb8,0xb8,3,LINK_UNEXPECTED_WIDTH,"2x"
END_ERRORS_LINKS
"""
_DIAGNOSTIC = {
    "DCGM Diagnostic": {
        "test_categories": [
            {"tests": [{"name": "PCIe", "results": [{"gpu_id": "3", "status": "Fail", "warnings": ["x"]}]}]}
        ]
    },
    "body": {"Link 0": {"children": {"CRC Data Error": {"value": "12"}}}},
    "/sys/class/infiniband/mlx5_0/ports/1/state": "2: INIT",
    "links": [{"ifname": "eth0", "flags": ["SLAVE", "NO-CARRIER", "UP"]}],
}

SAMPLES: dict[str, list[bytes]] = {
    "doctor-nccl": [_NCCL],
    "doctor-benchmarks": [_PERFTEST, _PERFTEST_SHAPES, _PERFTEST_JSON, _NCCL[-400:]],
    "doctor-xml": [_XML],
    "doctor-ras": [_RAS, _RAS_ERRORS, json.dumps(_RAS_JSON).encode()],
    "doctor-flight-recorder": [*(pickle.dumps(_DUMP, protocol=p) for p in (2, 4, 5)), json.dumps(_DUMP).encode()],
    "doctor-fabric": [_FABRIC],
    "doctor-adapters": [_ADAPTERS, _DRIVERS, b'[{"ifindex":0,"ifname":"efa_0","port":1,"rx_drops":99999}]'],
    "doctor-ethernet": [_ETHERNET, json.dumps(_CONFIG).encode()],
    "doctor-host": [_HOST, _PCI, _GPU_TESTS],
    "doctor-tables": [_TABLES],
    "doctor-modules": [_MODULES, json.dumps(_DIAGNOSTIC).encode()],
    "doctor-launchers": [_LAUNCHERS],
    "doctor-messages": [_MESSAGES, _PACKED, _OBJECTS, json.dumps(_EVENT).encode()],
}
