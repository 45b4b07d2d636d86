package main

import (
	"os"
	"testing"
	"time"

	"github.com/milkweedfs/milkweed/drivers/drivertest"
)

// BenchmarkFrameworks compares two epochs of programs that read a dataset with their libraries, over a
// mount and over its source, a simulated PFS. The libraries are loaded before, and the page cache has
// nothing of the dataset at the start of an epoch, as if the dataset were larger than the memory.
// .ci/deps.sh installs the environments.
func BenchmarkFrameworks(b *testing.B) {
	type environment struct {
		name, module string
		trials       []string
	}
	for _, e := range drivertest.Size([]environment{
		{"tensorflow", "with_tensorflow.py", []string{"records", "images", "tf.data", "tf.data service"}},
		{"huggingface", "with_huggingface.py", []string{"arrow", "parquet", "streaming", "images", "pyarrow", "duckdb", "safetensors", "h5py", "zarr", "lmdb", "webdataset"}},
		{"jax", "with_jax.py", []string{"array_record", "orbax", "tensorstore"}},
		{"torch", "with_torch.py", []string{"images", "checkpoint", "mosaicml remote", "mosaicml local"}},
	}, []environment{{"huggingface", "with_huggingface.py", []string{"pyarrow"}}}) {
		for _, trial := range e.trials {
			b.Run(e.name+"/"+trial, func(b *testing.B) {
				drivertest.Need(b, "venv-"+e.name)
				s := newSite(b)
				s.framework(e.name, e.module).compare(b, trial)
			})
		}
	}
}

// compare measures the epochs of a trial, and how much of the dataset the first one reads from the source.
func (f *framework) compare(b *testing.B, name string) {
	s := f.s
	folder := s.dir + "/dataset"
	f.do("make", name, folder, 0)
	f.do("read", name, folder, 0)
	size := total(s.files(folder))
	var direct, mounted [2][]float64
	for b.Loop() {
		pfs := s.countedPFS(folder, "200MB", "--latency", "2ms", "--ttl", "1s")
		for n := range direct {
			direct[n] = append(direct[n], f.epoch(name, s.source, n))
		}
		pfs.end()

		pfs = s.countedPFS(folder, "200MB", "--latency", "2ms", "--ttl", "1s")
		s.mount("1GiB")
		for n := range mounted {
			mounted[n] = append(mounted[n], f.epoch(name, s.point, n))
		}
		b.ReportMetric(float64(s.closed().Source.Bytes)/float64(size), "source/dataset")
		s.umount()
		s.emptyTiers()
		pfs.end()
	}
	b.ReportMetric(float64(size)/1e6, "MB")
	for n, epoch := range []string{"first-", "later-"} {
		reportRatio(b, epoch, "direct", mounted[n], direct[n])
	}
}

// epoch reads the dataset of a trial, and returns the seconds that it takes.
func (f *framework) epoch(name, data string, n int) float64 {
	f.s.t.Helper()
	if drivertest.Size(true, false) {
		f.s.check(os.WriteFile("/proc/sys/vm/drop_caches", []byte("3"), 0))
	}
	start := time.Now()
	f.do("read", name, data, n)
	return time.Since(start).Seconds()
}
