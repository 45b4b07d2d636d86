// Wheel writes a wheel of the Python module with the program, for pip:
//
//	wheel -version VERSION -arch ARCH -program FILE -licenses FILE -time SECONDS FOLDER
//
// The module and the examples are read from the folder examples, and the licence from LICENSE, in the working
// directory. The bytes depend only on the arguments and these files.
package main

import (
	"archive/zip"
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// platforms are the tags of a program for an architecture of Go. A static program meets the rules of
// manylinux and of musllinux; manylinux2014 is the name of manylinux_2_17 before pip 20.3.
var platforms = map[string][]string{
	"amd64": {"manylinux_2_17_x86_64", "manylinux2014_x86_64", "musllinux_1_1_x86_64"},
	"arm64": {"manylinux_2_17_aarch64", "manylinux2014_aarch64", "musllinux_1_1_aarch64"},
}

const metadata = `Metadata-Version: 2.1
Name: milkweed
Version: %s
Summary: Caching file system for deep-learning datasets
Home-page: https://github.com/milkweedfs/milkweed
Author: The Milkweed Authors
Author-email: milkweedfs@users.noreply.github.com
License: ISC
Classifier: License :: OSI Approved :: ISC License (ISCL)
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Typing :: Typed
Requires-Python: >=3.8
Description-Content-Type: text/markdown

Milkweed is a read-only FUSE file system that caches a slow, shared dataset in the memory and on the
disk of a node. An unchanged training job reads each byte from the shared storage once, as long as
the tiers have room, and from then on locally.

    import milkweed
    with milkweed.mount("/lustre/imagenet") as path:    # or "s3://imagenet/2012?region=eu-west-1"
        train(path)

The package has the program ` + "`milkweed`" + `, which is static, and a typed module without dependencies.
It needs Linux 5.6 and /dev/fuse; an ordinary user also needs ` + "`fusermount3`" + `, of the package fuse3 of
the distribution.
`

const about = `Wheel-Version: 1.0
Generator: milkweed
Root-Is-Purelib: false
`

// examples are the files of the wheel that pip installs below share/doc/milkweed of the environment.
var examples = []string{
	"examples/pytorch/make_digits.py", "examples/pytorch/train.py",
	"examples/tensorflow/tfrecord.py", "examples/tensorflow/train.py",
}

func main() {
	var w wheel
	version := flag.String("version", "", "the `VERSION` of the release")
	flag.StringVar(&w.arch, "arch", "", "the `ARCH` of the program, as of Go")
	program := flag.String("program", "", "the `FILE` with the program")
	licenses := flag.String("licenses", "", "the `FILE` with the licences of the libraries")
	seconds := flag.Int64("time", 0, "the time of all files, in `SECONDS` since 1970")
	flag.Parse()
	w.version, w.time = python(*version), time.Unix(*seconds, 0).UTC()
	err := w.write(*program, *licenses, flag.Arg(0))
	if err != nil {
		fmt.Fprintln(os.Stderr, "wheel:", err)
		os.Exit(1)
	}
}

// python returns a version as PEP 440 has it: 1.0.0~rc1 is 1.0.0rc1, 0~20260102.gabc, which comes before
// all others, is 0.dev20260102+gabc, and a second + is a dot.
func python(version string) string {
	public, local, _ := strings.Cut(version, "+")
	if day, revision, ok := strings.Cut(strings.TrimPrefix(public, "0~"), "."); ok && strings.HasPrefix(public, "0~") {
		public, local = "0.dev"+day, strings.TrimSuffix(revision+"+"+local, "+")
	}
	public = strings.ReplaceAll(public, "~", "")
	if local == "" {
		return public
	}
	return public + "+" + strings.ReplaceAll(local, "+", ".")
}

// A wheel is a zip archive with a list of its files.
type wheel struct {
	version string // of PEP 440
	arch    string
	time    time.Time

	zip    *zip.Writer
	record strings.Builder
}

// write writes the wheel into a folder.
func (w *wheel) write(program, licenses, folder string) error {
	tags, ok := platforms[w.arch]
	if !ok || folder == "" {
		return fmt.Errorf("no platform for the architecture %q, or no folder", w.arch)
	}
	base := "milkweed-" + w.version
	var archive bytes.Buffer
	w.zip = zip.NewWriter(&archive)
	about := about
	for _, tag := range tags {
		about += "Tag: py3-none-" + tag + "\n"
	}
	info := base + ".dist-info/"
	err := cmp.Or(
		w.copy("milkweed/__init__.py", "examples/python/milkweed/__init__.py", 0o644),
		w.copy("milkweed/py.typed", "examples/python/milkweed/py.typed", 0o644),
		w.copy(base+".data/scripts/milkweed", program, 0o755),
		w.copy(info+"licenses/LICENSE", "LICENSE", 0o644),
		w.copy(info+"licenses/third-party-licenses", licenses, 0o644),
		w.add(info+"METADATA", []byte(fmt.Sprintf(metadata, w.version)), 0o644),
		w.add(info+"WHEEL", []byte(about), 0o644),
	)
	for _, path := range examples {
		err = cmp.Or(err, w.copy(base+".data/data/share/doc/milkweed/"+path, path, 0o644))
	}
	if err != nil {
		return err
	}
	w.record.WriteString(info + "RECORD,,\n")
	if err := cmp.Or(w.add(info+"RECORD", []byte(w.record.String()), 0o644), w.zip.Close()); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, base+"-py3-none-"+strings.Join(tags, ".")+".whl"), archive.Bytes(), 0o644)
}

// copy adds a file under a name.
func (w *wheel) copy(name, path string, mode os.FileMode) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return w.add(name, data, mode)
}

// add adds a file, and records its checksum.
func (w *wheel) add(name string, data []byte, mode os.FileMode) error {
	h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: w.time}
	h.SetMode(mode)
	f, err := w.zip.CreateHeader(h)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	fmt.Fprintf(&w.record, "%s,sha256=%s,%d\n", name, base64.RawURLEncoding.EncodeToString(sum[:]), len(data))
	_, err = f.Write(data)
	return err
}
