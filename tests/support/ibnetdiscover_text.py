"""A small fabric as ibnetdiscover prints it."""

# Two leaves and a spine; a box on each leaf; a storage host with a card of two ports, one of which says nothing
# of itself; a subnet manager's host on the spine; an aggregation node; a chassis's external port; a loop cable.
TEXT = """\
#
# Topology file: generated on a Monday
#
# Initiated from node 00000000000000a1 port 00000000000000a1

vendid=0x2c9
devid=0xd2f0
sysimgguid=0x51
switchguid=0x51(51)
Switch\t41 "S-0000000000000051"\t\t# "MF0;leaf-1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]\t"H-00000000000000a1"[1](a1) \t\t# "box-1 mlx5_0" lid 11 4xHDR
[2]\t"H-00000000000000c1"[1](c1) \t\t# "store-1 HCA-1" lid 13 4xEDR
[3]\t"H-00000000000000c2"[1](c2) \t\t# "" lid 14 4xEDR
[21]\t"S-0000000000000053"[1]\t\t# "MF0;spine-1:CS8500/L01/U1" lid 3 4xHDR
[22]\t"S-0000000000000053"[2]\t\t# "MF0;spine-1:CS8500/L01/U1" lid 3 2xHDR
[41]\t"H-00000000000000f1"[1](f1) \t\t# "Mellanox Technologies Aggregation Node" lid 21 4xHDR

vendid=0x2c9
devid=0xd2f0
sysimgguid=0x52
switchguid=0x52(52)
Switch\t41 "S-0000000000000052"\t\t# "MF0;leaf-2:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1]\t"H-00000000000000a2"[1](a2) \t\t# "box-2 mlx5_0" lid 12 4xHDR
[10]\t"S-0000000000000052"[11]\t\t# "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR
[11]\t"S-0000000000000052"[10]\t\t# "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR
[21]\t"S-0000000000000053"[3][ext 3]\t\t# "MF0;spine-1:CS8500/L01/U1" lid 3 4xHDR

switchguid=0x53(53)
Switch\t40 "S-0000000000000053"\t\t# "MF0;spine-1:CS8500/L01/U1" base port 0 lid 3 lmc 0
[1]\t"S-0000000000000051"[21]\t\t# "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR
[2]\t"S-0000000000000051"[22]\t\t# "MF0;leaf-1:MQM8700/U1" lid 1 2xHDR
[3][ext 3]\t"S-0000000000000052"[21]\t\t# "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR s=64 w=2
[9]\t"H-00000000000000d1"[1](d1) \t\t# "manager mlx5_0" lid 15 4xFDR10

sysimgguid=0xa1
caguid=0xa1
Ca\t1 "H-00000000000000a1"\t\t# "box-1 mlx5_0"
[1](a1) \t"S-0000000000000051"[1]\t\t# lid 11 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR

sysimgguid=0xa2
caguid=0xa2
Ca\t1 "H-00000000000000a2"\t\t# "box-2 mlx5_0"
[1](a2) \t"S-0000000000000052"[1]\t\t# lid 12 lmc 0 "MF0;leaf-2:MQM8700/U1" lid 2 4xHDR

sysimgguid=0xc1
caguid=0xc1
Ca\t1 "H-00000000000000c1"\t\t# "store-1 HCA-1"
[1](c1) \t"S-0000000000000051"[2]\t\t# lid 13 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xEDR

sysimgguid=0xc1
caguid=0xc2
Ca\t1 "H-00000000000000c2"\t\t# ""
[1](c2) \t"S-0000000000000051"[3]\t\t# lid 14 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xEDR

caguid=0xd1
Ca\t1 "H-00000000000000d1"\t\t# "manager mlx5_0"
[1](d1) \t"S-0000000000000053"[9]\t\t# lid 15 lmc 0 "MF0;spine-1:CS8500/L01/U1" lid 3 4xFDR10

caguid=0xf1
Ca\t1 "H-00000000000000f1"\t\t# "Mellanox Technologies Aggregation Node"
[1](f1) \t"S-0000000000000051"[41]\t\t# lid 21 lmc 0 "MF0;leaf-1:MQM8700/U1" lid 1 4xHDR
"""
