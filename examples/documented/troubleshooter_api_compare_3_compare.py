# TroubleShooter, automatic comparison on the level of APIs, the comparison. Nothing is changed.
# It needs what the first two scripts wrote.
import troubleshooter as ts

# 根据dump得到的数据进行比对，指定对比结果输出到output_path目录下
ts.migrator.api_dump_compare('ms_dump', 'torch_dump', output_path='compare_result')
