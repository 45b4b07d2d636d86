package check

import (
	"context"

	"github.com/milkweedfs/milkweed/cmd/internal/config"
	"github.com/milkweedfs/milkweed/cmd/internal/exit"
	"github.com/milkweedfs/milkweed/cmd/internal/filelist"
)

const planName = "plan" // the name of the finding

// plan checks the file of mount.plan.
func (h host) plan(ctx context.Context, c *config.Config) []Finding {
	file := c.Mount.Plan
	if file == "" {
		return nil
	}
	const remedy = "mount.plan is a file with one path on each line, relative to the mount point."
	onTimeout := problem(exit.Usage, planName, remedy, "%s did not respond within %s", file, h.timeout)
	return h.withTimeout(ctx, onTimeout, func() []Finding {
		if err := filelist.Check(file, []string{c.Mount.Point}); err != nil {
			return problem(exit.Usage, planName, remedy, "%w", err)
		}
		return ok(planName, "%s", file)
	})
}
