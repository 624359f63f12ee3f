# PaDiff 0.2, ViTPose, part 4: where a difference comes from.
# Changed: LayerMap is imported without being called, which no import can; the models and loaders are those of part 0; the
# weights that are loaded are called as they were read (state_dict, not torch_new_state_dict); the function is called.
# single_step is True, as the document's text says; its block has False. What the block leaves out is as in part 3.
from padiff import auto_diff, assign_weight, LayerMap
from padiff_vitpose_0_prepare import *

def test_forward():

    # step 1: 得到 paddle 以及 torch 模型
    pretrained = pretrained_weights('./ViTPose/vitpose-b.pth')
    state_dict = torch.load(pretrained)['state_dict']
    torch_model = tiny_pose_torch()
    torch_model.load_state_dict(state_dict)
    torch_model.eval()

    paddle_model = tiny_pose_paddle()
    paddle_model.eval()

    # step 2: 构造 input
    paddle_batch = next(iter(build_paddle_data_pipeline()[1]))
    torch_batch = next(iter(build_torch_data_pipeline()[1]))
    inp = ({'x': paddle_batch['image']},
           {'x': torch_batch['img']})

    # step 3: 构造 layer_map
    layer_map = LayerMap()
    layer_map.auto(paddle_model, torch_model)

    # step 4: 使用工具接口初始化 paddle 模型权重 （复制torch权重到paddle模型）
    assign_weight(paddle_model, torch_model, layer_map)

    # step 5: 调用 auto_diff 接口
    result = auto_diff(
        paddle_model,
        torch_model,
        inp,
        auto_weights=False,
        layer_map=layer_map,
        options={
            'atol':0.0,
            'rtol':1e-5,
            'single_step':True,
            'diff_phase':'both',
        },
    )

    return result


test_forward()
