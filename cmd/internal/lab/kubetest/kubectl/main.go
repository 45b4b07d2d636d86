// Kubectl is a kubectl for tests, without a cluster. It remembers the objects that were applied in the
// folder KUBETEST_STATE. What a cluster would refuse or wait for in vain is an error: objects that do not
// agree with their schemas in KUBETEST_SCHEMAS, command lines that the programs in KUBETEST_PROGRAMS
// refuse, references to objects that do not exist, and names that were not applied. It has the commands
// and flags that the documents use, and refuses others.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/milkweedfs/milkweed/cmd/internal/lab/kubetest"
)

func main() {
	c, err := load(os.Getenv("KUBETEST_STATE"))
	if err == nil {
		err = c.command().Execute()
	}
	if err == nil {
		err = c.save()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// A cluster is what was applied.
type cluster struct {
	dir       string // has the file of the cluster
	namespace string // of -n
	objects   []kubetest.Object
}

func (c *cluster) file() string { return filepath.Join(c.dir, "objects.json") }

// load loads the cluster in dir. A new one has two namespaces, and four nodes.
func load(dir string) (*cluster, error) {
	if dir == "" {
		return nil, errors.New("KUBETEST_STATE is not set")
	}
	c := &cluster{dir: dir}
	data, err := os.ReadFile(c.file())
	if errors.Is(err, os.ErrNotExist) {
		for _, name := range []string{"default", "kube-system"} {
			c.objects = append(c.objects, object("v1", "Namespace", "", name))
		}
		for i := range 4 {
			c.objects = append(c.objects, object("v1", "Node", "", fmt.Sprintf("node%d", i+1)))
		}
		return c, nil
	}
	if err != nil {
		return nil, err
	}
	return c, json.Unmarshal(data, &c.objects)
}

func (c *cluster) save() error {
	data, err := json.Marshal(c.objects)
	if err != nil {
		return err
	}
	return os.WriteFile(c.file(), data, 0o644)
}

func object(version, kind, namespace, name string) kubetest.Object {
	return kubetest.Object{"apiVersion": version, "kind": kind, "metadata": map[string]any{"name": name, "namespace": namespace}}
}

func (c *cluster) command() *cobra.Command {
	root := &cobra.Command{Use: "kubectl", SilenceErrors: true, SilenceUsage: true, CompletionOptions: cobra.CompletionOptions{DisableDefaultCmd: true}}
	root.PersistentFlags().StringVarP(&c.namespace, "namespace", "n", "default", "")
	root.RunE = incomplete
	root.AddCommand(c.apply(), c.delete(), c.create(), c.label(), c.get(), c.rollout(), c.wait(), c.logs(), c.exec(), c.drain(), c.uncordon())
	return root
}

// incomplete is a command that needs a subcommand.
func incomplete(cmd *cobra.Command, args []string) error {
	return fmt.Errorf("%s: unknown command %q", cmd.CommandPath(), args)
}

// manifests adds the flags -k and -f to a command, and returns a function that reads what they name.
func manifests(cmd *cobra.Command) (read func() ([]byte, error), given func() bool) {
	folder := cmd.Flags().StringP("kustomize", "k", "", "")
	file := cmd.Flags().StringP("filename", "f", "", "")
	given = func() bool { return *folder != "" || *file != "" }
	return func() ([]byte, error) {
		switch {
		case *folder != "":
			return kubetest.Build(*folder)
		case *file == "-":
			return io.ReadAll(os.Stdin)
		default:
			return os.ReadFile(*file)
		}
	}, given
}

func (c *cluster) apply() *cobra.Command {
	cmd := &cobra.Command{Use: "apply", Args: cobra.NoArgs}
	read, given := manifests(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		if !given() {
			return errors.New("apply needs -k or -f")
		}
		data, err := read()
		if err != nil {
			return err
		}
		if err := kubetest.Schemas(os.Getenv("KUBETEST_SCHEMAS")).Validate(data); err != nil {
			return err
		}
		objects, err := kubetest.Parse(data)
		if err != nil {
			return err
		}
		for _, o := range objects {
			if err := c.add(o, objects); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// add applies an object. What it refers to exists, or is one of those that are applied with it.
func (c *cluster) add(o kubetest.Object, others []kubetest.Object) error {
	all := slices.Concat(c.objects, others)
	for _, id := range o.References() {
		found := slices.ContainsFunc(all, func(o kubetest.Object) bool { return o.ID() == id })
		if !found && id.Kind == "PersistentVolumeClaim" { // Fluid makes a claim for a Dataset
			dataset := kubetest.ID{Namespace: id.Namespace, Kind: "Dataset", Name: id.Name}
			found = slices.ContainsFunc(all, func(o kubetest.Object) bool { return o.ID() == dataset })
		}
		if !found {
			return fmt.Errorf("%v refers to %v, which does not exist", o.ID(), id)
		}
	}
	for _, line := range o.Commands() {
		if err := kubetest.CheckCommand(os.Getenv("KUBETEST_PROGRAMS"), line); err != nil {
			return fmt.Errorf("%v: %w", o.ID(), err)
		}
	}
	done := "created"
	if i := c.index(o.ID()); i >= 0 {
		c.objects[i], done = o, "configured"
	} else {
		c.objects = append(c.objects, o)
	}
	fmt.Println(title(o), done)
	return nil
}

// title returns how kubectl names an object: as in daemonset.apps/name.
func title(o kubetest.Object) string {
	name := strings.ToLower(o.Kind())
	if group, _, ok := strings.Cut(fmt.Sprint(o["apiVersion"]), "/"); ok {
		name += "." + group
	}
	return name + "/" + o.Name()
}

// index returns the place of an object, or -1.
func (c *cluster) index(id kubetest.ID) int {
	return slices.IndexFunc(c.objects, func(o kubetest.Object) bool { return o.ID() == id })
}

func (c *cluster) delete() *cobra.Command {
	cmd := &cobra.Command{Use: "delete"}
	read, given := manifests(cmd)
	selector := cmd.Flags().StringP("selector", "l", "", "")
	node := cmd.Flags().String("field-selector", "", "")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *selector != "" {
			if name, ok := strings.CutPrefix(*node, "spec.nodeName="); ok {
				if _, err := c.find("node", name); err != nil {
					return err
				}
			}
			return c.pods(args, *selector)
		}
		var ids []kubetest.ID
		if given() {
			data, err := read()
			if err != nil {
				return err
			}
			objects, err := kubetest.Parse(data)
			if err != nil {
				return err
			}
			for _, o := range objects {
				ids = append(ids, o.ID())
			}
		} else {
			found, err := c.named(args)
			if err != nil {
				return err
			}
			ids = append(ids, found.ID())
		}
		for _, id := range ids {
			i := c.index(id)
			if i < 0 {
				return fmt.Errorf("%v not found", id)
			}
			kind, name, _ := strings.Cut(title(c.objects[i]), "/")
			fmt.Printf("%s %q deleted\n", kind, name)
			c.objects = slices.DeleteFunc(c.objects, func(o kubetest.Object) bool {
				return o.ID() == id || id.Kind == "Namespace" && o.Namespace() == id.Name
			})
		}
		return nil
	}
	return cmd
}

func (c *cluster) create() *cobra.Command {
	cmd := &cobra.Command{Use: "create", RunE: incomplete}
	secret := &cobra.Command{Use: "secret", RunE: incomplete}
	generic := &cobra.Command{Use: "generic NAME", Args: cobra.ExactArgs(1)}
	files := generic.Flags().StringArray("from-file", nil, "")
	literals := generic.Flags().StringArray("from-literal", nil, "")
	generic.RunE = func(_ *cobra.Command, args []string) error {
		for _, f := range *files {
			key, path, ok := strings.Cut(f, "=")
			if !ok {
				return fmt.Errorf("--from-file %q: KEY=FILE", f)
			}
			if data, err := os.ReadFile(path); err != nil || len(data) == 0 {
				return fmt.Errorf("key %s is empty: %w", key, err)
			}
		}
		for _, l := range *literals {
			if key, value, ok := strings.Cut(l, "="); !ok || value == "" {
				return fmt.Errorf("key %s is empty", key)
			}
		}
		if len(*files)+len(*literals) == 0 {
			return errors.New("the secret has no key")
		}
		o := object("v1", "Secret", c.namespace, args[0])
		if c.index(o.ID()) >= 0 {
			return fmt.Errorf("%v already exists", o.ID())
		}
		return c.add(o, nil)
	}
	secret.AddCommand(generic)
	cmd.AddCommand(secret)
	return cmd
}

func (c *cluster) label() *cobra.Command {
	cmd := &cobra.Command{Use: "label KIND NAME... KEY=VALUE"}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if len(args) < 3 {
			return errors.New("label KIND NAME... KEY=VALUE")
		}
		key, value, _ := strings.Cut(args[len(args)-1], "=")
		key, remove := strings.CutSuffix(key, "-")
		for _, name := range args[1 : len(args)-1] {
			o, err := c.find(args[0], name)
			if err != nil {
				return err
			}
			labels, _ := o.Get("metadata", "labels").(map[string]any)
			if labels == nil {
				labels = make(map[string]any)
			}
			o["metadata"].(map[string]any)["labels"] = labels
			if labels[key] = value; remove {
				delete(labels, key)
				fmt.Println(title(o), "unlabeled")
				continue
			}
			fmt.Println(title(o), "labeled")
		}
		return nil
	}
	return cmd
}

func (c *cluster) get() *cobra.Command {
	cmd := &cobra.Command{Use: "get"}
	selector := cmd.Flags().StringP("selector", "l", "", "")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *selector != "" {
			return c.pods(args, *selector)
		}
		o, err := c.named(args)
		if err != nil {
			return err
		}
		fmt.Printf("NAME\n%s\n", o.Name())
		return nil
	}
	return cmd
}

// kinds are the names of kinds that kubectl accepts, as far as they are used here.
var kinds = map[string]string{
	"csidriver": "CSIDriver", "dataset": "Dataset", "ds": "DaemonSet", "daemonset": "DaemonSet", "job": "Job", "namespace": "Namespace", "ns": "Namespace",
	"no": "Node", "node": "Node", "persistentvolume": "PersistentVolume", "pv": "PersistentVolume", "persistentvolumeclaim": "PersistentVolumeClaim",
	"pvc": "PersistentVolumeClaim", "po": "Pod", "pod": "Pod", "secret": "Secret", "service": "Service", "thinruntime": "ThinRuntime",
}

// find returns the object of a kind with a name.
func (c *cluster) find(kind, name string) (kubetest.Object, error) {
	k, ok := kinds[strings.TrimSuffix(kind, "s")]
	if !ok && kinds[kind] == "" {
		return nil, fmt.Errorf("the server doesn't have a resource type %q", kind)
	} else if !ok {
		k = kinds[kind]
	}
	for _, o := range c.objects {
		id := o.ID()
		if id.Kind == k && id.Name == name && (id.Namespace == "" || id.Namespace == c.namespace) {
			return o, nil
		}
	}
	return nil, fmt.Errorf("%s %q not found in namespace %s", strings.ToLower(k), name, c.namespace)
}

// named returns the object that args name, as KIND/NAME or KIND NAME.
func (c *cluster) named(args []string) (kubetest.Object, error) {
	if len(args) == 1 {
		if kind, name, ok := strings.Cut(args[0], "/"); ok {
			return c.find(kind, name)
		}
	}
	if len(args) != 2 {
		return nil, fmt.Errorf("%q names no object", args)
	}
	return c.find(args[0], args[1])
}

// pods checks that an object has pods with a label, which is KEY=VALUE.
func (c *cluster) pods(args []string, selector string) error {
	key, value, _ := strings.Cut(selector, "=")
	if len(args) != 1 || kinds[strings.TrimSuffix(args[0], "s")] != "Pod" {
		return fmt.Errorf("%q with a selector: only pods", args)
	}
	for _, o := range c.objects {
		if o.Namespace() == c.namespace && o.Get("spec", "template", "metadata", "labels", key) == value {
			fmt.Printf("NAME\n%s-x7k2p\n", o.Name())
			return nil
		}
	}
	return fmt.Errorf("no resources found in %s namespace with %s", c.namespace, selector)
}

func (c *cluster) rollout() *cobra.Command {
	cmd := &cobra.Command{Use: "rollout", RunE: incomplete}
	status := &cobra.Command{Use: "status", RunE: func(_ *cobra.Command, args []string) error {
		o, err := c.named(args)
		if err != nil {
			return err
		}
		if o.Get("spec", "updateStrategy", "type") == "OnDelete" {
			return errors.New("rollout status is only available for RollingUpdate strategy type")
		}
		fmt.Printf("daemon set %q successfully rolled out\n", o.Name())
		return nil
	}}
	cmd.AddCommand(status)
	return cmd
}

func (c *cluster) wait() *cobra.Command {
	cmd := &cobra.Command{Use: "wait"}
	condition := cmd.Flags().String("for", "", "")
	cmd.Flags().Duration("timeout", 0, "")
	selector := cmd.Flags().StringP("selector", "l", "", "")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if *selector != "" {
			if *condition != "condition=Ready" {
				return fmt.Errorf("pods have no %q", *condition)
			}
			return c.pods(args, *selector)
		}
		o, err := c.named(args)
		if err != nil {
			return err
		}
		conditions := map[string]string{
			"Job": "condition=Complete", "Pod": "jsonpath={.status.phase}=Succeeded", "Dataset": "jsonpath={.status.phase}=Bound",
			"PersistentVolumeClaim": "jsonpath={.status.phase}=Bound",
		}
		if want := conditions[o.Kind()]; want != *condition {
			return fmt.Errorf("--for %q: of a %s, wait for %q", *condition, o.Kind(), want)
		}
		fmt.Println(title(o), "condition met")
		return nil
	}
	return cmd
}

func (c *cluster) logs() *cobra.Command {
	cmd := &cobra.Command{Use: "logs", RunE: func(_ *cobra.Command, args []string) error {
		if len(args) == 1 && !strings.Contains(args[0], "/") {
			args = []string{"pod", args[0]}
		}
		_, err := c.named(args)
		return err
	}}
	return cmd
}

func (c *cluster) exec() *cobra.Command {
	cmd := &cobra.Command{Use: "exec"}
	container := cmd.Flags().StringP("container", "c", "", "")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() != 1 {
			return errors.New("exec KIND/NAME -- COMMAND")
		}
		o, err := c.named(args[:1])
		if err != nil {
			return err
		}
		names := o.Containers()
		if *container != "" && !slices.Contains(names, *container) {
			return fmt.Errorf("%v has no container %q", o.ID(), *container)
		}
		return kubetest.CheckCommand(os.Getenv("KUBETEST_PROGRAMS"), args[1:])
	}
	return cmd
}

func (c *cluster) drain() *cobra.Command {
	cmd := &cobra.Command{Use: "drain NODE", Args: cobra.ExactArgs(1)}
	daemonSets := cmd.Flags().Bool("ignore-daemonsets", false, "")
	cmd.Flags().Bool("delete-emptydir-data", false, "")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		if !*daemonSets {
			return errors.New("cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)")
		}
		if _, err := c.find("node", args[0]); err != nil {
			return err
		}
		fmt.Printf("node/%s drained\n", args[0])
		return nil
	}
	return cmd
}

func (c *cluster) uncordon() *cobra.Command {
	return &cobra.Command{Use: "uncordon NODE", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		if _, err := c.find("node", args[0]); err != nil {
			return err
		}
		fmt.Printf("node/%s uncordoned\n", args[0])
		return nil
	}}
}
