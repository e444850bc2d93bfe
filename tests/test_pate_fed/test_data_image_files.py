"""Files of images as hospitals have them: every form read right, every other refused by name."""

from __future__ import annotations

import io
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from pydicom.uid import JPEG2000Lossless

from party.site.own_table import examine
from pate_fed.data import DataSource, load_dataset
from pate_fed.data.image_files import images_of, lists_images, public_images, reading_of
from pate_fed.data.image_pixels import ImageReading, look_at, read_image
from pate_fed.data.reading import Reading
from pate_fed.errors import (
    InvalidCellError,
    InvalidDataError,
    InvalidParameterError,
    MissingColumnError,
    PateFedError,
    RareClassError,
    UnreadableFileError,
)
from tests.support.own_images import SIDE, dicom_file, picture, write_class_folders
from tests.support.real_data import real_data

PIXELS = picture(np.random.default_rng(1), 0)
READING = ImageReading(SIDE, SIDE, 1)
SECRET = "Lovelace^Ada"


def saved(image: Image.Image, form: str, **how: object) -> bytes:
    made = io.BytesIO()
    image.save(made, form, **how)
    return made.getvalue()


def read(content: bytes, reading: ImageReading = READING) -> np.ndarray:
    return read_image(content, "one", reading)


def claimed_png(width: int, height: int) -> bytes:
    """A file of few bytes that says that it has these sides."""
    content = saved(Image.fromarray(PIXELS), "PNG")
    header = content[12:16] + struct.pack(">II", width, height) + content[24:29]
    return content[:12] + header + struct.pack(">I", zlib.crc32(header)) + content[33:]


def oriented(pixels: np.ndarray, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(Image.fromarray(pixels), "PNG", exif=exif)


class TestForms:
    @pytest.mark.parametrize("form", ["PNG", "TIFF", "BMP"])
    def test_gray_bytes_stay_as_they_are(self, form: str) -> None:
        assert np.array_equal(read(saved(Image.fromarray(PIXELS), form))[..., 0], PIXELS)

    @pytest.mark.parametrize("form", ["JPEG", "WEBP"])
    def test_a_lossy_image_is_close(self, form: str) -> None:
        found = read(saved(Image.fromarray(PIXELS), form, quality=95))[..., 0]
        assert np.abs(found.astype(int) - PIXELS).mean() < 6

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_an_image_is_turned_as_its_file_says(self, orientation: int) -> None:
        turned = {
            1: PIXELS,
            2: np.fliplr(PIXELS),
            3: np.rot90(PIXELS, 2),
            4: np.flipud(PIXELS),
            5: PIXELS.T,
            6: np.rot90(PIXELS, 1),
            7: np.rot90(PIXELS, 2).T,
            8: np.rot90(PIXELS, -1),
        }
        content = oriented(np.ascontiguousarray(turned[orientation]), orientation)
        assert np.array_equal(read(content)[..., 0], PIXELS)

    def test_sixteen_bits_are_read_in_one_window_for_all(self) -> None:
        dark, bright = (
            np.full((SIDE, SIDE), 1000, np.uint16),
            np.full((SIDE, SIDE), 3000, np.uint16),
        )
        dark[0], bright[0] = 900, 3100  # each has a range of its own
        reading = ImageReading(SIDE, SIDE, 1, 0, 4000)
        found = [read(saved(Image.fromarray(one), "PNG"), reading) for one in (dark, bright)]
        assert [one[5, 5, 0] for one in found] == [64, 191]

    def test_numbers_beyond_the_window_are_black_and_white(self) -> None:
        values = np.array([[0, 500], [1000, 65_535]], np.uint16).repeat(4, 0).repeat(4, 1)
        found = read(saved(Image.fromarray(values), "TIFF"), ImageReading(8, 8, 1, 500, 1000))
        assert (found[0, 0, 0], found[0, 7, 0], found[7, 0, 0], found[7, 7, 0]) == (0, 0, 255, 255)

    def test_a_hidden_color_behind_transparency_is_black(self) -> None:
        color = np.dstack([PIXELS, PIXELS, PIXELS, np.zeros_like(PIXELS)])
        assert not read(saved(Image.fromarray(color), "PNG")).any()

    @pytest.mark.parametrize("mode", ["1", "P", "LA", "RGBA", "CMYK", "YCbCr"])
    def test_other_modes_are_read(self, mode: str) -> None:
        image = Image.fromarray(np.where(PIXELS > 120, 255, 0).astype(np.uint8)).convert(mode)
        found = read(
            saved(image, "JPEG" if mode == "YCbCr" else "TIFF" if mode == "CMYK" else "PNG")
        )
        assert ((found[..., 0] > 120) == (PIXELS > 120)).mean() > 0.95

    def test_a_palette_with_transparency_is_black_there(self) -> None:
        image = Image.fromarray(np.where(PIXELS > 120, 1, 0).astype(np.uint8), "P")
        image.putpalette([255, 255, 255, 100, 100, 100])
        found = read(saved(image, "PNG", transparency=0))
        assert np.array_equal(found[..., 0], np.where(PIXELS > 120, 100, 0))

    def test_images_of_other_bits_and_sizes_in_one_set_share_one_reading(
        self, tmp_path: Path
    ) -> None:
        for name, pixels in {
            "a": PIXELS,
            "b": PIXELS.astype(np.uint16) * 257,
            "c": np.kron(PIXELS, np.ones((3, 2), np.uint8)),
        }.items():
            Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        found = public_images(tmp_path)
        reading = reading_of(look_at(one, "one") for one in (found.content(0), found.content(2)))
        assert reading == ImageReading(64, 64, 1)  # 16 bits are nowhere in the pool: all of them
        images = found.read(reading).astype(float)
        assert np.abs(images[0] - images[1]).max() <= 1
        assert np.abs(images[0] - images[2]).mean() < 12

    def test_color_of_a_public_image_is_kept_and_gray_is_made_of_it(self) -> None:
        color = np.dstack([PIXELS, PIXELS // 2, PIXELS // 3])
        content = saved(Image.fromarray(color), "PNG")
        assert look_at(content, "one").has_color
        assert np.array_equal(read(content, ImageReading(SIDE, SIDE, 3)), color)
        assert read(content).shape == (SIDE, SIDE, 1)


class TestDicom:
    @pytest.mark.parametrize("inverted", [False, True], ids=["MONOCHROME2", "MONOCHROME1"])
    def test_pixels_are_shown_by_the_files_own_rescale_and_window(self, *, inverted: bool) -> None:
        assert np.array_equal(read(dicom_file(PIXELS, inverted=inverted))[..., 0], PIXELS)

    @pytest.mark.parametrize("inverted", [False, True])
    def test_without_a_window_the_tasks_is_taken(self, *, inverted: bool) -> None:
        content = dicom_file(PIXELS, inverted=inverted, window=False)
        found = read(content, ImageReading(SIDE, SIDE, 1, -1000, 1040))
        assert np.array_equal(found[..., 0], PIXELS)
        look = look_at(content, "one")
        shown = 255 - PIXELS.astype(int) if inverted else PIXELS.astype(int)
        assert (look.lowest, look.highest) == (8 * shown.min() - 1000, 8 * shown.max() - 1000)

    def test_a_file_may_have_any_name(self, tmp_path: Path) -> None:
        for kind in ("a", "b"):
            (tmp_path / kind).mkdir()
            (tmp_path / kind / "IM0001").write_bytes(dicom_file(PIXELS))
        assert len(images_of(tmp_path)) == 2

    @pytest.mark.parametrize(
        "changed",
        [
            pytest.param({"NumberOfFrames": 2}, id="two frames"),
            pytest.param({"PhotometricInterpretation": "PALETTE COLOR"}, id="a palette"),
            pytest.param({"Rows": 60_000, "Columns": 60_000}, id="more pixels than it has"),
            pytest.param({"BitsAllocated": 7}, id="impossible bits"),
        ],
    )
    def test_another_is_refused_without_a_word_of_its_header(
        self, changed: dict[str, object]
    ) -> None:
        content = dicom_file(PIXELS, texts={"PatientName": SECRET}, **changed)
        with pytest.raises(UnreadableFileError) as refused:
            read(content)
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None

    def test_a_header_is_in_no_warning_and_no_log(
        self, recwarn: pytest.WarningsRecorder, caplog: pytest.LogCaptureFixture
    ) -> None:
        content = dicom_file(PIXELS, texts={"StudyInstanceUID": f"1.2.{SECRET}"})
        assert SECRET in caplog.text, "the library says it where it may"
        recwarn.clear()
        caplog.clear()
        with caplog.at_level("DEBUG"):
            read(content)
        assert not recwarn.list
        assert SECRET not in caplog.text

    def test_a_file_that_is_deflated_as_a_whole_is_refused(self) -> None:
        content = dicom_file(PIXELS)
        with pytest.raises(UnreadableFileError, match="deflated"):
            read(content[:200] + b"1.2.840.10008.1.2.1.99" + content[200:])


class TestRefusals:
    @pytest.mark.parametrize(
        "content",
        [
            pytest.param(lambda: b"", id="empty"),
            pytest.param(lambda: b"\x89PNG nonsense", id="nonsense"),
            pytest.param(lambda: saved(Image.fromarray(PIXELS), "PNG")[:-40], id="cut off"),
            pytest.param(lambda: saved(Image.fromarray(PIXELS), "JPEG")[:200], id="cut JPEG"),
            pytest.param(lambda: b"%PDF-1.4 an export of a viewer", id="PDF"),
            pytest.param(lambda: b'<svg xmlns="http://www.w3.org/2000/svg"/>', id="SVG"),
            pytest.param(lambda: b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(64), id="HEIC"),
            pytest.param(lambda: claimed_png(100_000, 100_000), id="a claim of 10 gigapixels"),
            pytest.param(lambda: claimed_png(2**31 - 1, 2**31 - 1), id="the largest claim"),
            pytest.param(
                lambda: dicom_file(PIXELS, syntax=JPEG2000Lossless), id="DICOM without a decoder"
            ),
            pytest.param(
                lambda: dicom_file(PIXELS, PixelData=bytes(10)), id="DICOM of too few pixels"
            ),
            pytest.param(lambda: saved(Image.fromarray(PIXELS), "GIF"), id="GIF"),
            pytest.param(lambda: bytes(128) + b"DICM" + bytes(50), id="DICOM without an image"),
            pytest.param(
                lambda: saved(Image.fromarray(PIXELS.astype(np.float32)), "TIFF"), id="fractions"
            ),
            pytest.param(
                lambda: saved(
                    Image.fromarray(PIXELS),
                    "TIFF",
                    save_all=True,
                    append_images=[Image.fromarray(PIXELS)],
                ),
                id="two pages",
            ),
            pytest.param(
                lambda: saved(Image.new("1", (20_000, 20_000)), "PNG"), id="a bomb of few bytes"
            ),
        ],
    )
    def test_what_is_no_single_image_is_refused(self, content: Callable[[], bytes]) -> None:
        with pytest.raises(UnreadableFileError, match="one"):
            read(content())

    def test_a_text_in_a_file_is_in_no_error(self) -> None:
        info = PngInfo()
        info.add_text("patient", SECRET)
        content = saved(Image.fromarray(PIXELS), "PNG", pnginfo=info)
        with pytest.raises(UnreadableFileError) as refused:
            read(content[:-40])
        assert SECRET not in str(refused.value)
        assert refused.value.__cause__ is None


class TestFolders:
    def test_images_of_a_patient_stay_together(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=24, images=3)
        data = load_dataset(DataSource("images", data_dir=folder), rng=np.random.default_rng(0))
        units = [set(part.unit_ids) for part in data.parts]
        assert sum(map(len, units)) == 24
        assert not units[0] & units[1]
        assert not units[1] & units[2]
        assert not any("epsilon" in note for note in data.notes)

    def test_hidden_files_and_what_systems_leave_behind_are_skipped(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        for name in (".DS_Store", "._0.png", "Thumbs.db", "desktop.ini"):
            (folder / "dark" / "p000" / name).write_bytes(b"nothing")
        (folder / ".git").mkdir()
        (folder / "__MACOSX").mkdir()
        assert len(images_of(folder)) == 8

    def test_images_beside_patients_folders_are_refused(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        Image.fromarray(PIXELS).save(folder / "dark" / "stray.png")
        with pytest.raises(InvalidDataError, match="patient"):
            images_of(folder)

    def test_an_error_about_a_private_image_does_not_name_it(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        (folder / "dark" / "p000" / "Ada Lovelace.png").write_bytes(b"no image")
        with pytest.raises(UnreadableFileError) as refused:
            images_of(folder).read(READING)
        assert "Ada" not in str(refused.value)
        with pytest.raises(UnreadableFileError, match="Ada"):
            images_of(folder, shows_names=True).read(READING)

    def test_two_patients_may_have_files_of_one_name(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4, images=1)
        assert len(set(images_of(folder).units)) == len(images_of(folder)) == 4

    def test_one_image_of_two_classes_is_said(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        assert images_of(folder).copies == ()
        again = folder / "bright" / "p001" / "again.png"
        again.write_bytes((folder / "dark" / "p000" / "0.png").read_bytes())
        assert len(images_of(folder).copies) == 2
        again.write_bytes((folder / "bright" / "p001" / "0.png").read_bytes())
        assert len(images_of(folder).copies) == 1

    def test_classes_get_other_names_and_no_other_option_is_taken(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        found = images_of(folder, reading=Reading(renamed=("dark=normal",)))
        assert set(found.labels) == {"normal", "bright"}
        assert found.digest != images_of(folder).digest
        with pytest.raises(MissingColumnError):
            images_of(folder, reading=Reading(renamed=("gray=normal",)))
        with pytest.raises(InvalidParameterError):
            images_of(folder, reading=Reading(separator=";"))

    def test_a_folder_called_like_a_missing_cell_is_no_class(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        (folder / "dark").rename(folder / "NA")
        with pytest.raises(InvalidCellError):
            images_of(folder)

    def test_classes_that_are_spelled_in_two_ways_are_refused(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=12)
        (folder / "Dark").mkdir()
        (folder / "dark" / "p000").rename(folder / "Dark" / "p000")
        with pytest.raises(InvalidDataError):
            load_dataset(DataSource("images", data_dir=folder), rng=np.random.default_rng(0))
        with pytest.raises(InvalidDataError):
            examine(folder, label="kind", patient_id=None, floor=2)

    def test_a_file_that_is_too_large_is_refused_unread(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        with (folder / "dark" / "p000" / "x.png").open("wb") as file:
            file.truncate(2**30)  # it takes no room
        with pytest.raises(UnreadableFileError):
            images_of(folder).read(READING)

    def test_a_link_to_a_folder_is_refused(self, tmp_path: Path) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        (folder / "dark" / "again").symlink_to(folder)
        with pytest.raises(UnreadableFileError, match="link"):
            images_of(folder)

    @pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
    def test_what_is_no_regular_file_is_refused_at_once(
        self, tmp_path: Path, make: Callable[[Path], None]
    ) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        make(folder / "dark" / "p000" / "x.png")
        with pytest.raises(UnreadableFileError):
            images_of(folder).read(READING)

    @pytest.mark.parametrize("change", ["content", "name", "class"])
    def test_the_digest_is_of_all_that_is_read(self, tmp_path: Path, change: str) -> None:
        folder = write_class_folders(tmp_path / "own", patients=4)
        before, one = images_of(folder).digest, folder / "dark" / "p000" / "0.png"
        if change == "content":
            Image.fromarray(255 - PIXELS).save(one)
        elif change == "name":
            one.rename(one.with_name("other.png"))
        else:
            (folder / "dark" / "p000").rename(folder / "bright" / "p000")
        assert images_of(folder).digest != before
        assert images_of(folder).digest == images_of(folder).digest


class TestLists:
    def listed(self, folder: Path, rows: list[str], header: str = "path,kind,person") -> Path:
        for name in ("a.png", "b.png", "c.png"):
            Image.fromarray(PIXELS).save(folder / name)
        path = folder / "list.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    def test_a_list_names_classes_and_patients(self, tmp_path: Path) -> None:
        path = self.listed(tmp_path, ["c.png,1,x", "a.png,1.0,y", "b.png,2,x"])
        assert lists_images(path)
        found = images_of(path, label="kind", patient_id="person")
        assert (found.names, found.labels) == (("a.png", "b.png", "c.png"), ("1", "2", "1"))
        assert found.units == ("y", "x", "x")

    @pytest.mark.parametrize(
        "rows",
        [
            pytest.param(["../b.png,1,x"], id="above"),
            pytest.param(["deep/../../b.png,1,x"], id="above in the middle"),
            pytest.param(["/etc/hostname,1,x"], id="absolute"),
            pytest.param([".,1,x"], id="the folder"),
            pytest.param(["a.png,1,x", "./a.png,2,x"], id="one file of two labels"),
            pytest.param(["a.png,1,x", "b.png,,x"], id="no label"),
            pytest.param(["a.png,1,x", "b.png,2,"], id="no patient"),
            pytest.param(["a.png,1,x", ",2,y"], id="no path"),
        ],
    )
    def test_a_row_that_names_no_image_of_the_folder_is_refused(
        self, tmp_path: Path, rows: list[str]
    ) -> None:
        inner = tmp_path / "inner"
        inner.mkdir()
        Image.fromarray(PIXELS).save(tmp_path / "b.png")
        path = self.listed(inner, ["c.png,1,x", *rows])
        with pytest.raises(InvalidDataError) as refused:
            images_of(path, label="kind", patient_id="person")
        assert "hostname" not in str(refused.value)

    def test_a_list_is_one_though_its_first_file_is_not_there(self, tmp_path: Path) -> None:
        assert lists_images(self.listed(tmp_path, ["gone.png,1,x", "a.png,2,x"]))

    def test_a_column_of_long_texts_called_path_is_no_list(self, tmp_path: Path) -> None:
        rows = ["carcinoma " * 40 + ",1,x", "none,2,y"]
        assert not lists_images(self.listed(tmp_path, rows))

    def test_a_list_is_read_as_its_owner_says(self, tmp_path: Path) -> None:
        path = self.listed(tmp_path, ["a.png;ja;x", "b.png;nein;y", "c.png;;z"], "path;kind;person")
        how = Reading(separator=";", renamed=("ja=yes", "nein=no"), drops_unlabeled=True)
        assert not lists_images(path)
        assert lists_images(path, how)
        found = images_of(path, label="kind", patient_id="person", reading=how)
        assert (found.labels, found.units) == (("yes", "no"), ("x", "y"))

    def test_a_path_twice_and_a_missing_column_are_refused(self, tmp_path: Path) -> None:
        path = self.listed(tmp_path, ["a.png,1,x", "a.png,1,x"])
        with pytest.raises(InvalidDataError, match="once"):
            images_of(path, label="kind")
        path = self.listed(tmp_path, ["a.png,1,x"])
        with pytest.raises(MissingColumnError):
            images_of(path, label="other")

    def test_a_file_that_is_not_there_is_said_by_its_place(self, tmp_path: Path) -> None:
        path = self.listed(tmp_path, ["a.png,1,x", "Ada.png,2,y"])
        with pytest.raises(UnreadableFileError) as refused:
            images_of(path, label="kind").read(READING)
        assert "Ada" not in str(refused.value)

    def test_a_simulation_takes_hospitals_from_a_list(self, tmp_path: Path) -> None:
        rng = np.random.default_rng(3)
        lines = ["path,kind,person,site"]
        for patient in range(30):
            Image.fromarray(picture(rng, patient % 2)).save(tmp_path / f"{patient}.png")
            lines.append(f"{patient}.png,{patient % 2},p{patient},s{patient % 3}")
        (tmp_path / "list.csv").write_text("\n".join(lines))
        source = DataSource(
            "images",
            data_file=tmp_path / "list.csv",
            label_column="kind",
            patient_column="person",
            hospital_column="site",
        )
        data = load_dataset(source, rng=rng)
        assert set(data.private.hospitals or ()) == {"s0", "s1", "s2"}
        assert data.private.row_names is not None
        assert data.private.unit_ids[0] == f"p{data.private.row_names[0].removesuffix('.png')}"


class TestPublicImages:
    def test_a_zip_is_read_without_its_folders(self, tmp_path: Path) -> None:
        path = tmp_path / "pool.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in ("b/2.png", "b/1.png", "__MACOSX/._1.png", ".hidden.png", "readme.txt"):
                archive.writestr(name, saved(Image.fromarray(PIXELS), "PNG"))
        found = public_images(path)
        assert found.names == ("b/1.png", "b/2.png")
        assert np.array_equal(found.read(READING)[0, ..., 0], PIXELS)

    def test_a_zip_that_lies_about_a_size_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "pool.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("1.png", bytes(10**6))
        content = path.read_bytes()
        path.write_bytes(
            content.replace((10**6).to_bytes(4, "little"), (100).to_bytes(4, "little"))
        )
        with pytest.raises(UnreadableFileError):
            public_images(path).read(READING)

    @pytest.mark.parametrize("name", ["../1.png", "/2.png", "a/../../3.png"])
    def test_a_path_outside_a_zip_is_refused(self, tmp_path: Path, name: str) -> None:
        path = tmp_path / "pool.zip"
        with zipfile.ZipFile(path, "w") as archive:
            for one in ("1.png", name):
                archive.writestr(one, saved(Image.fromarray(PIXELS), "PNG"))
        with pytest.raises(UnreadableFileError):
            public_images(path)

    def test_a_broken_zip_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "pool.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("1.png", saved(Image.fromarray(PIXELS), "PNG"))
        content = bytearray(path.read_bytes())
        content[60:80] = bytes(20)
        path.write_bytes(content)
        with pytest.raises(UnreadableFileError):
            public_images(path).read(READING)

    @pytest.mark.parametrize("rows", [10**6, 2**62], ids=["a terabyte", "more than numbers"])
    def test_an_archive_that_claims_too_much_is_refused(self, tmp_path: Path, rows: int) -> None:
        made = io.BytesIO()
        np.save(made, np.zeros((1, 1000, 1000), np.uint8))
        shape, wider = b"(1, 1000, 1000)", f"({rows}, 1000, 1000)".encode()
        spare = b" " * (len(wider) - len(shape))
        head = made.getvalue()[:128].replace(shape, wider).replace(spare + b"\n", b"\n")
        path = tmp_path / "own.npz"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("images.npy", head + bytes(1000))
        for read_it in (public_images, images_of):
            with pytest.raises(UnreadableFileError):
                read_it(path)

    @pytest.mark.parametrize(
        ("shapes", "size"),
        [
            pytest.param([(20, 30), (20, 30)], (20, 30), id="one small size"),
            pytest.param([(20, 30), (30, 20)], (64, 64), id="two sizes"),
            pytest.param([(200, 300)], (64, 64), id="a large one"),
        ],
    )
    def test_public_images_decide_the_size(
        self, shapes: list[tuple[int, int]], size: tuple[int, int]
    ) -> None:
        contents = [saved(Image.fromarray(np.zeros(shape, np.uint8)), "PNG") for shape in shapes]
        reading = reading_of(look_at(one, "one") for one in contents)
        assert (reading.height, reading.width, reading.channels) == (*size, 1)

    def test_public_images_of_sixteen_bits_decide_the_window(self) -> None:
        contents = [
            saved(Image.fromarray(np.array([[low, high]] * 8, np.uint16).repeat(4, 1)), "PNG")
            for low, high in ((700, 900), (500, 800))
        ]
        reading = reading_of(look_at(one, "one") for one in contents)
        assert (reading.low, reading.high) == (500, 900)


CASES = {
    "exif": "oriented",
    "png16_level": "one window",
    "hidden": "hidden files",
}


@pytest.mark.parametrize("case", CASES, ids=CASES.values())
def test_shared_cases_are_read(case: str) -> None:
    folder = real_data("data/cases") / "images" / case
    found = images_of(folder, shows_names=True)
    reading = reading_of(found.looks())
    images = found.read(reading).astype(float)
    labels = np.array([int(one.removeprefix("c")) for one in found.labels])
    if case == "png16_level":
        levels = images.mean(axis=(1, 2, 3))
        assert levels[labels == 1].min() > levels[labels == 0].max(), "brightness tells the class"
    if case == "exif":
        assert {one.shape for one in map(np.asarray, images)} == {(64, 64, 1)}
        sizes = {(one.height, one.width) for one in found.looks()}
        assert sizes == {(96, 64)}, "all upright"
    assert all(not name.rpartition("/")[2].startswith(".") for name in found.names)


@pytest.mark.parametrize(
    ("case", "images", "patients", "classes"),
    [
        pytest.param("exif", 12, 12, {"c0": 6, "c1": 6}, id="oriented"),
        pytest.param("png16_level", 12, 12, {"c0": 6, "c1": 6}, id="16 bits"),
        pytest.param("hidden", 6, 6, {"c0": 3, "c1": 3}, id="hidden files"),
        pytest.param("nested", 12, 2, {"c0": 2, "c1": 2}, id="folders of patients"),
        pytest.param("labels12.npz", 80, 80, {"1": 40, "2": 40}, id="an archive"),
    ],
)
def test_shared_cases_are_read_at_a_hospital(
    case: str, images: int, patients: int, classes: dict[str, int]
) -> None:
    path = real_data("data/cases") / "images" / case
    found = examine(path, label="finding", patient_id=None, floor=2)
    assert (found.rows, found.patients, dict(found.classes)) == (images, patients, classes)
    assert (found.patients_by != "") is (case == "nested")


def test_a_shared_case_without_pixels_is_refused_at_a_hospital() -> None:
    path = real_data("data/cases") / "images" / "dicom"
    with pytest.raises(UnreadableFileError):
        examine(path, label="finding", patient_id=None, floor=2)


@pytest.mark.parametrize("case", ["exif", "png16_level", "hidden"])
def test_shared_cases_are_read_in_a_simulation(case: str) -> None:
    folder = real_data("data/cases") / "images" / case
    data = load_dataset(DataSource("images", data_dir=folder), rng=np.random.default_rng(0))
    assert data.class_names == ("c0", "c1")
    assert sum(map(len, data.parts)) == len(images_of(folder))


def test_shared_cases_that_cannot_be_split_or_read_say_why() -> None:
    cases = real_data("data/cases") / "images"
    rng = np.random.default_rng(0)
    with pytest.raises(RareClassError, match="patients"):
        load_dataset(DataSource("images", data_dir=cases / "nested"), rng=rng)
    with pytest.raises(PateFedError, match="i00"):
        load_dataset(DataSource("images", data_dir=cases / "dicom"), rng=rng)
    two = load_dataset(DataSource("images", data_file=cases / "labels12.npz"), rng=rng)
    assert two.class_names == ("1", "2")
