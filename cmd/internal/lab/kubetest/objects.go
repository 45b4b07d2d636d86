package kubetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// An Object is an object of Kubernetes as YAML has it.
type Object map[string]any

// Parse parses a YAML stream of objects.
func Parse(manifests []byte) ([]Object, error) {
	var objects []Object
	decoder := yaml.NewDecoder(bytes.NewReader(manifests))
	for {
		var o map[string]any // not an Object: the maps in it would be Objects, too
		err := decoder.Decode(&o)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if len(o) > 0 {
			objects = append(objects, o)
		}
	}
}

// Get returns the value at a path of keys, or nil.
func (o Object) Get(path ...string) any {
	var value any = map[string]any(o)
	for _, key := range path {
		m, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = m[key]
	}
	return value
}

func (o Object) text(path ...string) string {
	s, _ := o.Get(path...).(string)
	return s
}

// Kind returns the kind of the object.
func (o Object) Kind() string { return o.text("kind") }

// Name returns the name of the object.
func (o Object) Name() string { return o.text("metadata", "name") }

// clusterKinds are the kinds whose objects are in no namespace, as far as they are used here.
var clusterKinds = []string{"CSIDriver", "Namespace", "Node", "PersistentVolume", "ThinRuntimeProfile"}

// Namespace returns the namespace of the object: "" if its kind has none.
func (o Object) Namespace() string {
	switch namespace := o.text("metadata", "namespace"); {
	case slices.Contains(clusterKinds, o.Kind()):
		return ""
	case namespace == "":
		return "default"
	default:
		return namespace
	}
}

// ID returns what identifies the object in a cluster.
func (o Object) ID() ID { return ID{o.Namespace(), o.Kind(), o.Name()} }

// An ID identifies an object in a cluster.
type ID struct{ Namespace, Kind, Name string }

func (id ID) String() string {
	name := strings.ToLower(id.Kind) + "/" + id.Name
	if id.Namespace != "" {
		name += " in namespace " + id.Namespace
	}
	return name
}

// podSpec returns the PodSpec of a Pod, or of the pods that the object creates, or nil.
func (o Object) podSpec() Object {
	path := []string{"spec", "template", "spec"}
	if o.Kind() == "Pod" {
		path = path[:1]
	}
	spec, _ := o.Get(path...).(map[string]any)
	return spec
}

// list returns the objects of the list at a path.
func (o Object) list(path ...string) []Object {
	var objects []Object
	values, _ := o.Get(path...).([]any)
	for _, v := range values {
		if m, ok := v.(map[string]any); ok {
			objects = append(objects, m)
		}
	}
	return objects
}

// words returns the list of strings at a path.
func (o Object) words(path ...string) []string {
	var words []string
	values, _ := o.Get(path...).([]any)
	for _, v := range values {
		words = append(words, fmt.Sprint(v))
	}
	return words
}

// References returns the objects that must exist before pods of this one start: its namespace, and
// the secrets, configuration and claims of its volumes.
func (o Object) References() []ID {
	namespace := o.Namespace()
	var ids []ID
	add := func(namespace, kind, name string) {
		if name != "" {
			ids = append(ids, ID{namespace, kind, name})
		}
	}
	if namespace != "" {
		add("", "Namespace", namespace)
	}
	for _, v := range slices.Concat(o.podSpec().list("volumes"), o.list("spec", "volumes")) {
		add(namespace, "Secret", v.text("secret", "secretName"))
		add(namespace, "ConfigMap", v.text("configMap", "name"))
		add(namespace, "PersistentVolumeClaim", v.text("persistentVolumeClaim", "claimName"))
		add(namespace, "Secret", v.text("csi", "nodePublishSecretRef", "name"))
		add("", "CSIDriver", v.text("csi", "driver"))
	}
	switch o.Kind() {
	case "PersistentVolume":
		add(o.text("spec", "csi", "nodePublishSecretRef", "namespace"), "Secret", o.text("spec", "csi", "nodePublishSecretRef", "name"))
		add("", "CSIDriver", o.text("spec", "csi", "driver"))
	case "PersistentVolumeClaim":
		add("", "PersistentVolume", o.text("spec", "volumeName"))
	case "ThinRuntime":
		add("", "ThinRuntimeProfile", o.text("spec", "profileName"))
		add(namespace, "Dataset", o.Name())
	case "Dataset":
		for _, m := range o.list("spec", "mounts") {
			for _, e := range m.list("encryptOptions") {
				add(namespace, "Secret", e.text("valueFrom", "secretKeyRef", "name"))
			}
		}
	}
	return ids
}

// Containers returns the names of the containers of the pods of the object.
func (o Object) Containers() []string {
	var names []string
	for _, c := range o.podSpec().list("containers") {
		names = append(names, c.text("name"))
	}
	return names
}

// isMilkweed reports whether an image is that of Milkweed, in whatever registry.
func isMilkweed(image string) bool {
	name, _, _ := strings.Cut(path.Base(image), ":")
	return name == "milkweed"
}

// Commands returns the command lines that the object runs in containers of Milkweed: those of the
// containers, their probes and hooks. Each begins with a path in the image.
func (o Object) Commands() [][]string {
	containers := o.podSpec().list("containers")
	if o.Kind() == "ThinRuntimeProfile" {
		fuse, _ := o.Get("spec", "fuse").(map[string]any)
		containers = append(containers, fuse)
	}
	var commands [][]string
	for _, c := range containers {
		if !isMilkweed(c.text("image")) {
			continue
		}
		commands = append(commands, slices.Concat(c.words("command"), c.words("args")))
		for _, place := range [][]string{
			{"readinessProbe"}, {"livenessProbe"}, {"startupProbe"}, {"lifecycle", "preStop"}, {"lifecycle", "postStart"},
		} {
			if command := c.words(slices.Concat(place, []string{"exec", "command"})...); len(command) > 0 {
				commands = append(commands, command)
			}
		}
	}
	return commands
}
