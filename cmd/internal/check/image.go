package check

import (
	"fmt"
	"time"

	"github.com/milkweedfs/milkweed/drivers"
)

// ImageRemedy is what to do about a source that IsImage.
const ImageRemedy = "Mount each version as a generation, or with a manifest, whose hashes tell the files apart."

// IsImage says why files of a source may change without another size or time, or returns "". It is so where
// an image takes the place of another one that was made with the same times, as reproducible builds do.
// source may be of any kind; sample describes some of its files.
func IsImage(source any, sample []drivers.Info) string {
	if s, ok := source.(interface{ FSType() string }); ok {
		switch t := s.FSType(); t {
		case "squashfs", "erofs", "iso9660":
			return "the source is an image (" + t + ")"
		}
	}
	const enough = 4
	times := make(map[time.Time]bool)
	for _, i := range sample {
		if i.Version != "" {
			return ""
		}
		times[i.Mtime.Round(0).UTC()] = true
	}
	if len(sample) < enough || len(times) > 1 {
		return ""
	}
	return fmt.Sprintf("all of %d sampled files have the same modification time", len(sample))
}
