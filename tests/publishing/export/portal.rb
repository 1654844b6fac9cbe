# What a portal does with an app's Ruby, for many forms at once: JSON on stdin and stdout.
#   batch-connect APP: each form -> what submit.yml.erb asks for and before.sh, or the error
#   before APP: each form -> before.sh, whatever submit.yml.erb says
#   open-composer APP: each form -> nil, or the error of `check`
#   read: each YAML text -> what it holds
require "erb"
require "fileutils"
require "json"
require "ostruct"
require "yaml"

def app_file(name)
  File.read(File.join(ARGV[1], name))
end

def rendered(name, scope)
  ERB.new(app_file(name), trim_mode: "-").result(scope)
end

Context = Struct.new(:said) do
  def method_missing(name, *)
    said.fetch(name.to_s) { super }
  end

  def respond_to_missing?(name, _ = false)
    said.key?(name.to_s)
  end
end

Staging = Struct.new(:context) do
  def get_binding
    binding
  end
end

def batch_connect(said)
  scope = OpenStruct.new(said).instance_eval { binding }
  submit = YAML.safe_load(rendered("submit.yml.erb", scope)).to_h
  before = rendered("template/before.sh.erb", Staging.new(Context.new(said)).get_binding)
  { "submit" => submit, "before" => before }
rescue StandardError => e
  { "error" => e.message }
end

def oc_assert(condition, message = "Error exists in script content.")
  raise message unless condition
end

Request = Struct.new(:post?)

module FileUtils
  def self.mkdir_p(path)
    raise Errno::EACCES, path if path == "/closed"
  end
end

def open_composer(params, file)
  request = Request.new(true)
  check = YAML.load(ERB.new(file, trim_mode: "-").result(binding))["check"]
  eval(check)
  { "error" => nil }
rescue Exception => e # as Open Composer does
  { "error" => e.message }
end

forms = JSON.parse($stdin.read)
answers =
  case ARGV[0]
  when "batch-connect"
    forms.map { |said| batch_connect(said) }
  when "before"
    forms.map do |said|
      rendered("template/before.sh.erb", Staging.new(Context.new(said)).get_binding)
    end
  when "open-composer"
    forms.map { |params| open_composer(params, app_file("form.yml.erb")) }
  when "read"
    forms.map { |text| YAML.safe_load(text) }
  end
puts JSON.generate(answers)
