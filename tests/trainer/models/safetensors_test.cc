#include "trainer/models/safetensors.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "trainer/models/yolov10.h"

namespace lockstep::trainer {
namespace {

class SafetensorsTest : public testing::Test {
  protected:
    SafetensorsTest()
        : folder_(std::filesystem::temp_directory_path() / base::str("lockstep_safetensors_", getpid())),
          path_(folder_ / "file.safetensors") {
        std::filesystem::create_directories(folder_);
    }
    ~SafetensorsTest() override { std::filesystem::remove_all(folder_); }

    void write(const std::string& content) const { std::ofstream(path_, std::ios::binary) << content; }

    void write(const std::string& header, const std::string& data) const {
        std::string length(8, '\0');
        for (int i = 0; i < 8; ++i) {
            length[i] = static_cast<char>(header.size() >> (8 * i) & 0xff);
        }
        write(length + header + data);
    }

    std::string complaint() const {
        try {
            load_safetensors(path_);
        } catch (const base::Error& error) {
            EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
            return error.what();
        }
        return "no error";
    }

    void expect_complaint(const std::string& header, const std::string& data, const std::string& part) const {
        write(header, data);
        const std::string text = complaint();
        EXPECT_NE(text.find(part), std::string::npos) << header << "\n" << text;
    }

    std::filesystem::path folder_, path_;
};

std::vector<NamedTensor> every_type() {
    const at::Tensor values = at::arange(24, at::kDouble).view({1, 2, 3, 4}) * 0.37 - 4;
    return {{"f64", values},
            {"f32", values.to(at::kFloat).contiguous(at::MemoryFormat::ChannelsLast)},
            {"f16", values.to(at::kHalf)},
            {"bf16", values.to(at::kBFloat16).transpose(1, 3)},
            {"i64", at::tensor({std::int64_t{1} << 62, std::int64_t{-7}}, at::kLong)},
            {"scalar", at::scalar_tensor(3, at::kLong)},
            {"none", at::empty({0, 5})}};
}

TEST_F(SafetensorsTest, RoundTripKeepsEveryBit) {
    const std::map<std::string, std::string> metadata = {{"model", "yolov10n"},
                                                         {"classes", "[\"tree\",\"\xc3\xa9t\xc3\xa9\"]"}};
    save_safetensors(path_, every_type(), metadata);
    const Safetensors loaded = load_safetensors(path_);
    EXPECT_EQ(loaded.metadata, metadata);
    std::map<std::string, at::Tensor> by_name;
    for (const NamedTensor& named : loaded.tensors) {
        by_name[named.name] = named.tensor;
    }
    EXPECT_EQ(by_name.size(), every_type().size());
    for (const NamedTensor& named : every_type()) {
        ASSERT_TRUE(by_name.contains(named.name));
        EXPECT_EQ(by_name[named.name].scalar_type(), named.tensor.scalar_type()) << named.name;
        EXPECT_TRUE(at::equal(by_name[named.name], named.tensor)) << named.name;
    }
    save_safetensors(path_, {}, {});
    EXPECT_TRUE(load_safetensors(path_).tensors.empty());
}

TEST_F(SafetensorsTest, AnotherReaderUnderstandsTheFile) {
    save_safetensors(path_, every_type(), {{"model", "yolov10n"}});
    // The format by its description, in Python's standard library: no code of ours.
    const std::filesystem::path script = folder_ / "read.py";
    std::ofstream(script) << R"(
import json, struct, sys
raw = open(sys.argv[1], "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8:8 + size])
data = raw[8 + size:]
assert size % 8 == 0, size
assert header.pop("__metadata__") == {"model": "yolov10n"}
sizes = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8}
codes = {"F64": "d", "F32": "f", "F16": "e", "I64": "q"}
position = 0
for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
    begin, end = entry["data_offsets"]
    count = 1
    for extent in entry["shape"]:
        count *= extent
    assert begin == position and end - begin == count * sizes[entry["dtype"]], (name, entry)
    position = end
    if entry["dtype"] in codes:
        values = struct.unpack("<%d%s" % (count, codes[entry["dtype"]]), data[begin:end])
        if name in ("f64", "f32", "f16"):
            assert entry["shape"] == [1, 2, 3, 4]
            worst = max(abs(v - (i * 0.37 - 4)) for i, v in enumerate(values))
            assert worst < {"f64": 1e-12, "f32": 1e-6, "f16": 4e-3}[name], (name, worst)
        if name == "i64":
            assert values == (1 << 62, -7), values
        if name == "scalar":
            assert values == (3,) and entry["shape"] == [], entry
assert position == len(data), (position, len(data))
assert sorted(header) == ["bf16", "f16", "f32", "f64", "i64", "none", "scalar"], sorted(header)
)";
    EXPECT_EQ(std::system(base::str("python3 ", script.string(), " ", path_.string()).c_str()), 0);
}

TEST_F(SafetensorsTest, ReadsWhatAnotherWriterMakes) {
    // Tensors out of order, spaces, a field that is not ours to know.
    write(
        R"( {"b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}, "a":{"dtype":"I64","shape":[],"data_offsets":[0,8]} } )",
        std::string("\x05\0\0\0\0\0\0\0\0\0\x80\x3f", 12));
    const Safetensors loaded = load_safetensors(path_);
    ASSERT_EQ(loaded.tensors.size(), 2U);
    EXPECT_EQ(loaded.tensors[0].name, "a");
    EXPECT_EQ(loaded.tensors[0].tensor.item<std::int64_t>(), 5);
    EXPECT_EQ(loaded.tensors[1].tensor[0].item<float>(), 1.0F);
    EXPECT_TRUE(loaded.metadata.empty());
}

TEST_F(SafetensorsTest, RefusesDamagedFiles) {
    EXPECT_THROW(load_safetensors(folder_ / "absent"), base::Error);
    for (const std::string& content :
         {std::string(), std::string("1234567"), std::string("\x09\0\0\0\0\0\0\0{}", 10), std::string(16, '\xff')}) {
        write(content);
        EXPECT_NE(complaint().find("header of"), std::string::npos) << complaint();
    }
    const std::string data(8, '\0');
    expect_complaint("", "", "no JSON");
    expect_complaint("{", data, "no JSON");
    expect_complaint("[]", data, "no JSON object");
    expect_complaint(std::string(200'000, '['), data, "no JSON");
    expect_complaint(R"({"a":3})", data, "tensor a lacks");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2]}})", data, "tensor a lacks");
    expect_complaint(R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", data, "tensor a lacks");
    expect_complaint(R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", data, "tensor a lacks");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", data, "tensor a lacks");
    expect_complaint(R"({"a":{"dtype":"F8","shape":[8],"data_offsets":[0,8]}})", data, "type F8");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", data, "no unsigned integer");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", data, "no unsigned integer");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,"8"]}})", data, "no unsigned integer");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,-8]}})", data, "no unsigned integer");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", data, "needs 12");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", data, "bytes 4 to 12 of 8");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", data, "bytes 8 to 0 of 8");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", data, "of 8");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", "",
                     "impossible shape");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0]}})", "",
                     "impossible shape");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", data, "belong to no tensor");
    expect_complaint(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", data, "begins at byte 4");
    expect_complaint(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
        data, "begins at byte 4");
    expect_complaint(
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
        data, "a twice");
    expect_complaint(R"({"__metadata__":{"a":1}})", "", "metadata a");
    expect_complaint(R"({"__metadata__":[]})", "", "__metadata__");
}

TEST_F(SafetensorsTest, ATruncatedFileIsRefusedAtEveryLength) {
    const std::vector<NamedTensor> tensors = {{"weight", at::ones({3})}};
    save_safetensors(path_, tensors, {});
    const std::string whole = base::read_text(path_);
    for (std::size_t size = 0; size < whole.size(); ++size) {
        write(whole.substr(0, size));
        EXPECT_THROW(load_safetensors(path_), base::Error) << size << " of " << whole.size() << " bytes";
    }
}

TEST_F(SafetensorsTest, UnknownTypesAreNotSaved) {
    const std::vector<NamedTensor> tensors = {{"mask", at::ones({3}, at::kBool)}};
    EXPECT_THROW(save_safetensors(path_, tensors, {}), base::Error);
    EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SafetensorsTest, WeightsGoFromModelToModel) {
    Yolov10 source(Yolov10Variant::n, 2), target(Yolov10Variant::n, 2);
    source.initialise(1);
    target.initialise(2);
    save_safetensors(path_, state_of(source), {});
    const LoadReport report = load_weights(target, path_);
    EXPECT_TRUE(report.complete());
    EXPECT_EQ(report.matched.size(), 595U);
    const std::vector<NamedTensor> expected = state_of(source), loaded = state_of(target);
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(expected[i].tensor, loaded[i].tensor)) << expected[i].name;
        EXPECT_EQ(expected[i].tensor.requires_grad(), loaded[i].tensor.requires_grad()) << expected[i].name;
    }
}

TEST_F(SafetensorsTest, TheReportNamesWhatDoesNotFit) {
    Yolov10 source(Yolov10Variant::n, 3), target(Yolov10Variant::n, 2);
    source.initialise(1);
    target.initialise(2);
    const at::Tensor kept = target.named_parameters()["model.23.cv3.0.2.bias"].clone();
    std::vector<NamedTensor> tensors = state_of(source);
    std::erase_if(tensors, [](const NamedTensor& named) { return named.name == "model.0.conv.weight"; });
    tensors.push_back({"model.99.conv.weight", at::ones({1})});
    save_safetensors(path_, tensors, {});
    const LoadReport report = load_weights(target, path_);
    EXPECT_FALSE(report.complete());
    EXPECT_EQ(report.missing, (std::vector<std::string>{"model.0.conv.weight"}));
    EXPECT_EQ(report.unexpected, (std::vector<std::string>{"model.99.conv.weight"}));
    ASSERT_EQ(report.shape_mismatched.size(), 12U) << "last class convolutions of 3 levels, 2 heads: weight and bias";
    EXPECT_EQ(report.shape_mismatched[0], "model.23.cv3.0.2.weight: file [3, 64, 1, 1], model [2, 64, 1, 1]");
    EXPECT_EQ(report.matched.size(), 595U - 1 - 12);
    EXPECT_TRUE(at::equal(target.named_parameters()["model.23.cv3.0.2.bias"], kept));
}

TEST_F(SafetensorsTest, HalfPrecisionWeightsAreConvertedOnLoading) {
    ConvBN source(2, 2), target(2, 2);
    initialise(source, 1, ConvolutionInitialisation::kaiming_uniform);
    std::vector<NamedTensor> tensors = state_of(source);
    for (NamedTensor& named : tensors) {
        if (named.tensor.is_floating_point()) {
            named.tensor = named.tensor.detach().to(at::kHalf);
        }
    }
    save_safetensors(path_, tensors, {});
    EXPECT_TRUE(load_weights(target, path_).complete());
    EXPECT_EQ(target.convolution().weight.scalar_type(), at::kFloat);
    EXPECT_TRUE(at::equal(target.convolution().weight, source.convolution().weight.to(at::kHalf).to(at::kFloat)));
}

}  // namespace
}  // namespace lockstep::trainer
